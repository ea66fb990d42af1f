"""The reasoning path of an answer in a normal form: answers that reason alike have equal ones.

Distinct lists of equations are distinct paths (Yuan et al. 2023, arXiv 2308.01825). Beyond that
paper, the operands of sums and products are sorted: 2 * 60 and 60 * 2 are one path.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Literal

import xxhash

DistinctBy = Literal["equations", "text", "code"]

_EXACT = Context(prec=400, traps=[])
_PLAIN_EXPONENTS = range(-50, 51)
"""Numbers with other exponents stay in scientific notation."""

_TRANSLATION = str.maketrans(
    dict.fromkeys("×⋅·∙∗", "*")
    | {
        "÷": "/",
        "⁄": "/",
        "−": "-",
        "–": "-",
        "≈": "=",
        "²": "^2",
        "³": "^3",
    }
)
_LATEX = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\approx\b"), "="),
    (re.compile(r"\\text\s*\{[^{}]*\}|\\boxed\b|\\[,!;() \[\]]|[{}]"), " "),
)
_MARK_AFTER_EQUALS = re.compile(r"(=\s*(?:[$€£]\s*)?)<<[^<>\n]*>>")
_MARK = re.compile(r"<<([^<>\n]*)>>\s*[\d.,]*\d")
"""GSM8K's calculator marks, <<48/2=24>>24: behind an equals sign they repeat the equation,
elsewhere they are the only place of it.
"""
_ASIDE = re.compile(r"</?[A-Za-z]+>|\([^()\d]*\)|^[ \t]*[-*•]\s", re.MULTILINE)
"""Tags, brackets around words, and the marks of a list."""
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d])")
_EQUALS = re.compile(r"\b(?:equals|equal\s+to|equivalent\s+to)\b", re.IGNORECASE)
_BRACKET_TIMES = re.compile(r"(?<=[\d)])\((?=[\d.])")
_SHARE_OF = re.compile(r"%\s*of\b", re.IGNORECASE)
_TIMES = re.compile(r"(?<![A-Za-z])[xX](?=\s*[$(.\d])")
_SENTENCE_END = re.compile(r"(?<!=)\n(?![ \t]*=)|[;:!?]|[.,](?!\d)|####")
_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4}\b)?)"
    r"|(?P<word>[^\W\d_]+(?:(?:\^|\*\*)-?\d+|\d+)?)"
    r"|(?P<sign>\*\*|//|[-+*/^()=])"
)
"""A number, a word or unit with its power (m^2, cm**3), an operator, a bracket or an equals sign.
Everything else means nothing here.
"""
_OPERATORS = frozenset({"+", "-", "*", "/", "^"})
_WORDS = re.compile(r"</?answer>|####|\\boxed|\d+(?:\.\d+)?|[^\W\d_]+", re.IGNORECASE)


def path_of(answer: str, by: DistinctBy) -> str:
    """The reasoning path of an answer.

    Args:
        answer: Answer as the model wrote it; for code, the program alone.
        by: "equations": those of the text in order, without units and words, or the text where
            there is none. "text": its words and numbers, without case, spaces and punctuation.
            "code": the syntax tree of Python, without comments and docstrings, or the text where it
            is none.

    Returns:
        `2 hours = 2 × 60 = <answer>120</answer>` by equations: "2=2*60=120".
    """
    path = ""
    if by == "equations":
        path = "; ".join(equations_of(answer))
    elif by == "code":
        path = _program(answer)
    return path or _text(answer)


def path_hash(answer: str, by: DistinctBy) -> str:
    """`path_of` as 16 characters."""
    return xxhash.xxh3_64_hexdigest(path_of(answer, by).encode(errors="surrogatepass"))


def equations_of(text: str) -> list[str]:
    """The equations of a text in order, in a normal form: numbers, operators, brackets and equals
    signs alone, operands sorted.
    """
    return [
        equation
        for sentence in _SENTENCE_END.split(_plain(text))
        for run in _runs(sentence)
        if (equation := _equation(run))
    ]


def _plain(text: str) -> str:
    """One way to write signs, and nothing that only marks up."""
    text = _MARK.sub(r" ; \1 ; ", _MARK_AFTER_EQUALS.sub(r"\1", text)).translate(_TRANSLATION)
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), _ASIDE.sub(" ", text))
    text = _BRACKET_TIMES.sub("*(", text)
    return _TIMES.sub("*", _SHARE_OF.sub("*", _EQUALS.sub("=", text)))


def _runs(sentence: str) -> Iterator[list[str]]:
    """Numbers and signs that follow each other, cut where a number follows a number: there words
    have joined them, not an operator.
    """
    run: list[str] = []
    for match in _TOKEN.finditer(sentence):
        if match["word"]:
            continue
        if match["number"]:
            part = _number(match["number"])
        else:
            part = {"**": "^", "//": "/"}.get(match["sign"], match["sign"])
        if run and _is_operand_end(run[-1]) and (match["number"] or part == "("):
            yield run
            run = []
        if part in _OPERATORS and run and run[-1] in _OPERATORS and part != "-":
            run[-1] = part  # a slash of km/h stood before it
        else:
            run.append(part)
    yield run


def _is_operand_end(part: str) -> bool:
    return part == ")" or part[0].isdecimal()


def _number(text: str) -> str:
    """2.0, 2 and 2e0 are one number."""
    value = _EXACT.create_decimal(Decimal(text)).normalize(_EXACT)
    if not value.is_finite():
        return text
    if value.adjusted() in _PLAIN_EXPONENTS:
        return f"{value:f}"
    return str(value)


def _equation(run: list[str]) -> str:
    """The run as an equation; empty where fewer than two sides say something."""
    sides = [side for text in "".join(run).split("=") if (side := _side(text))]
    if len(sides) < 2:
        return ""
    return "=".join(sides)


def _side(text: str) -> str:
    """One side without operators and brackets that join nothing; sums and products sorted where no
    bracket or power stands; empty without a number.
    """
    unclosed = text.count("(") - text.count(")")
    text = text.replace("(", "", max(unclosed, 0))[::-1].replace(")", "", max(-unclosed, 0))[::-1]
    text = re.sub(r"^[+*/^]+|[-+*/^]+$", "", re.sub(r"\(([\d.]+)\)", r"\1", text))
    if not re.search(r"\d", text):
        return ""
    if re.search(r"[()^E]|[-+*/]-", text):
        return text
    return _sorted(text)


def _sorted(side: str) -> str:
    """`4*3-2` -> `3*4-2`: signed terms, and factors with the sign they are joined by, in the order
    of their texts.
    """
    signed = []
    for term in re.findall(r"[-+]?[^-+]+", side):
        sign = "-" if term.startswith("-") else "+"
        factors = sorted(re.findall(r"[*/][^*/]+", "*" + term.lstrip("-+")))
        signed.append(sign + "".join(factors).removeprefix("*"))
    return "".join(sorted(signed)).removeprefix("+")


def _text(text: str) -> str:
    """Words, numbers and the mark of the final answer."""
    plain = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text.casefold())
    return " ".join(
        _number(word) if word[0].isdecimal() else word for word in _WORDS.findall(plain)
    )


def _program(code: str) -> str:
    """The syntax tree of a program; empty where it is none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # old escapes
            tree = ast.parse(code)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and ast.get_docstring(node) is not None
            ):
                node.body = node.body[1:]
        return ast.dump(tree) if tree.body else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
