"""From an answer to code: fenced blocks, whole functions, bodies, text around; and whether code
parses.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from brimful.base.types import Json

_FENCED = re.compile(
    r"^([ \t]*)(```+|~~~+)[^`\n]*\n(.*?)(?:^[ \t]*\2[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
"""A block between fences as Markdown has them: indentation, fence, content; an open one goes to the
end of the text.
"""
_CODE_BEGINS = re.compile(r"(from|import|def|async def|class)\b|@\w")

MAX_CODE_CHARACTERS = 20_000
"""Most characters of an answer that a verifier reads as code: looking for the code in talk takes
time that grows with the square of the lines.
"""

Extraction = Callable[[str, Json], str]
"""The code of an answer, given the row that was asked about."""


@dataclass(frozen=True)
class SyntaxVerdict:
    """Whether code is Python of this version.

    Attributes:
        parses: It does, and holds at least one statement that is not just a text.
        error: Why not, as a kind to count: "empty", "only comments", "IndentationError",
            "SyntaxError: invalid syntax" and so on; "" when it parses.
        line: Where, from 1; None when unknown.
    """

    parses: bool
    error: str = ""
    line: int | None = None


def code_of(text: str) -> str:
    """The first fenced block of an answer, closed or not; without one the whole text."""
    return next(iter(code_blocks(text)), text)


def code_blocks(text: str) -> list[str]:
    """What stands between the fences of an answer, block by block, without the indentation of its
    fence; none where the whole answer is Python already, whose fences then stand in its texts and
    comments.
    """
    blocks = [_unindented(match[3], len(match[1])) for match in _FENCED.finditer(text)]
    if blocks and parses(text).parses:
        return []
    return blocks


def _unindented(block: str, width: int) -> str:
    """Each line without up to `width` spaces or tabs at its beginning."""
    return re.sub(rf"^[ \t]{{0,{width}}}", "", block, flags=re.MULTILINE)


def parses(code: str) -> SyntaxVerdict:
    """Judge code by `ast.parse`; nothing of it is run. Empty code, bare comments and docstrings are
    no programs.
    """
    if not code.strip():
        return SyntaxVerdict(False, "empty")
    try:
        # Python warns of old escapes and of comparisons that are always false.
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(code).body
    except SyntaxError as error:
        return SyntaxVerdict(False, _kind(error), error.lineno)
    except (RecursionError, MemoryError):
        return SyntaxVerdict(False, "nested too deeply")
    except ValueError:  # null characters, half of a surrogate pair
        return SyntaxVerdict(False, "not text")
    if all(map(_is_text, body)):
        return SyntaxVerdict(False, "only comments")
    return SyntaxVerdict(True)


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is nothing but a string, as docstrings are."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _kind(error: SyntaxError) -> str:
    """The message of an error, without line numbers and quoted code, so that it can be counted."""
    if type(error) is not SyntaxError:
        return type(error).__name__
    message = re.sub(r" \([^()]*line \d+\)| on line \d+", "", error.msg)
    message = re.sub(r"'[A-Za-z_]\w*'|\"[^\"]*\"", "...", message)
    message = re.sub(r" U[+][0-9A-F]+| .+ [(]U[+][0-9A-F]+[)]", " character", message)
    return f"SyntaxError: {message}"


def fenced_code(text: str, row: Json) -> str:
    """`code_of`, as an extraction."""
    del row
    return code_of(text)


def program(text: str, row: Json) -> str:
    """The first fenced block, or the part of a text that is code."""
    del row
    blocks = code_blocks(text)
    if blocks:
        return blocks[0]
    return _without_talk(text)


def continuation(text: str, row: Json) -> str:
    """The row's prompt and what a base model wrote behind it."""
    return f"{_opened(row)}{text.removeprefix(chr(10))}"


def function(text: str, row: Json) -> str:
    """The row's prompt (a signature with its docstring) and an answer to it that is a whole
    function or only its body.

    A whole function stands below the prompt's, which has no body but its docstring, and replaces
    it; imports and helpers of the prompt stay.
    """
    opened, name = _opened(row), str(row["entry_point"])
    blocks = code_blocks(text)
    defines = re.compile(rf"^(async )?def {re.escape(name)}\b", re.MULTILINE)
    code = next(filter(defines.search, [*blocks, text]), blocks[0] if blocks else text)
    if defines.search(code):
        return f"{opened}\n{code if code in blocks else _without_talk(code)}"
    return next(
        (whole for whole in _with_body(opened, code) if _has_body(whole, name)), opened + code
    )


EXTRACTIONS: Mapping[str, Extraction] = MappingProxyType(
    {"code": fenced_code, "program": program, "continuation": continuation, "function": function}
)
"""Extractions by the name that a task gives."""


def _opened(row: Json) -> str:
    return f"{str(row['prompt']).removesuffix(chr(10))}\n"


def _with_body(opened: str, code: str) -> Iterator[str]:
    """The body as written, with its first line's indentation restored, and with that of all
    lines.
    """
    body = code.strip("\n")
    yield f"{opened}{body}\n"
    yield f"{opened}    {body.lstrip()}\n"
    yield f"{opened}{textwrap.indent(textwrap.dedent(body), '    ')}\n"


def _has_body(code: str, name: str) -> bool:
    """Whether the code ends with the function, and the function does more than describe itself."""
    if not parses(code).parses:
        return False
    with warnings.catch_warnings(action="ignore"):
        last = ast.parse(code).body[-1]
    return isinstance(last, ast.FunctionDef) and last.name == name and len(last.body) > 1


def _without_talk(text: str) -> str:
    """The longest run of lines that parses, from the first line that looks like code; the text
    itself where there is none.
    """
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if _CODE_BEGINS.match(line)), None)
    if first is None or parses(text).parses:
        return text
    return _longest_code(lines[first:]) or "".join(lines[first:])


def _longest_code(lines: Sequence[str]) -> str:
    """The longest run of lines from the first on that parses, empty where none does.

    No run with the line of an error parses, so what ends before it is tried next. Where the error
    is that the text ends, the next run is shorter by one line, from the ninth time on by twice as
    many as before, and what is skipped so is bisected at the end. The time grows with the length,
    not with its square.
    """
    end, failed, step = len(lines), len(lines) + 1, 1
    while end > 0:
        verdict = parses("".join(lines[:end]))
        if verdict.parses:
            break
        before_error = end if verdict.line is None else verdict.line - 1
        step = 2 * step if before_error >= end - 1 else 1
        end, failed = max(0, min(before_error, end - max(1, step // 256))), end
    while failed - end > 1 and step >= 512:
        middle = (end + failed) // 2
        if parses("".join(lines[:middle])).parses:
            end = middle
        else:
            failed = middle
    return "".join(lines[:end])


def python_verdict(answer: str) -> tuple[str, str]:
    """The code of an answer, and whether it parses, in a line."""
    code = code_of(answer)
    verdict = parses(code)
    kind, _, what = verdict.error.partition(": ")
    if verdict.line is not None:
        return code, f"does not parse: {kind}, line {verdict.line}{f': {what}' if what else ''}"
    if verdict.parses:
        return code, "parses as Python"
    return code, f"is no program: {verdict.error}"
