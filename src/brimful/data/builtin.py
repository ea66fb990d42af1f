"""Corpora made on the spot: from what every Python installation has, or drawn from seeds
(`conversion`). No download, no import of the modules read.

The sources of the standard library are parsed with `ast`; nothing of them is executed. Their
corpora are the same for the same Python version and files, in the same order.
"""

import ast
import os
import re
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType

import xxhash

from brimful.base.errors import DataError
from brimful.base.garbage import collector_off
from brimful.base.kept_values import kept_value
from brimful.base.text import clause
from brimful.data import conversion
from brimful.data.rows import Row

GENERATION = 1
"""Raised when the making of a corpus changes, so that caches of the old one are not used."""
ROWS_GENERATION = 1
"""Raised when only the making of its rows changes."""

_SKIPPED_FOLDERS = frozenset(
    {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "lib-dynload",
        "__pycache__",
        "pydoc_data",
        "_bundled",
        "__phello__",
    }
)
_GENERATED = re.compile(
    r"encodings/(cp|iso8859_|mac_|koi8_|kz1048|ptcp|hp_roman|tis_620|palmos)|_sysconfigdata"
    r"|^config-|/pgen2/|^(this|antigravity)\.py$"
)
_LARGEST_DOCUMENT_CHARACTERS = 32_768
"""Longer sources are mostly tables; their parts are used instead."""

_TASK_CHARACTERS = range(10, 401)
_FUNCTION_CHARACTERS = range(30, 1201)
"""Small models learn little from longer ones; shorter ones say nothing."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def names() -> list[str]:
    """Names that follow `builtin:`."""
    return sorted(CORPORA)


def fingerprint(name: str) -> str:
    """Return what identifies the texts of a corpus: it changes with the way the corpus is made,
    with the Python version, and with the files that it is read from.
    """
    if name.split(maxsplit=1)[0] in SPLIT_ROWS:
        return xxhash.xxh3_128_hexdigest(f"{name}\0{conversion.GENERATION}".encode())
    checksum = xxhash.xxh3_128(f"{name}\0{GENERATION}\0{sys.version_info[:3]}".encode())
    for path in [_topics_file(), *_source_files()]:
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


def rows_fingerprint(name: str) -> str:
    """The same for the corpus as rows."""
    return fingerprint(f"{name} rows {ROWS_GENERATION}")


def python_docs() -> Iterator[str]:
    """One document per topic of the language reference, and per module its docstrings with their
    signatures.
    """
    return iter(_made()[0])


def python_code() -> Iterator[str]:
    """One document per documented function or class of the standard library: its source, dedented,
    docstring included.
    """
    return iter(_made()[1])


def python_code_rows() -> Iterator[Row]:
    """One task per plain documented function or method of `python_code`.

    `prompt` names the function with its arguments and says what it does by the first paragraph of
    its docstring; `completion` is its source, dedented, without the docstring; `document` is the
    text of `python_code` that holds it, so that both can be held out together.
    """
    return _numbered(_made_rows(), "builtin:python-code")


def python_docs_rows() -> Iterator[Row]:
    """The documents of `python_docs`, each the `text` of a row."""
    return _numbered(({"text": text} for text in python_docs()), "builtin:python-docs")


def _numbered(rows: Iterable[dict[str, str]], what: str) -> Iterator[Row]:
    return (
        Row(dict(columns), f"{what}, row {number}") for number, columns in enumerate(rows, start=1)
    )


CORPORA: Mapping[str, Callable[[], Iterator[str]]] = MappingProxyType(
    {
        "python-code": python_code,
        "python-docs": python_docs,
        "unit-conversion": conversion.conversion_documents,
        "unit-conversion-short": conversion.conversion_documents,
        "unit-conversion-small": conversion.conversion_documents,
    }
)
SPLIT_ROWS: Mapping[str, Callable[[str], Iterator[Row]]] = MappingProxyType(
    {
        "unit-conversion": conversion.conversion_rows,
        "unit-conversion-short": conversion.short_conversion_rows,
        "unit-conversion-small": conversion.small_conversion_rows,
    }
)
"""Corpora that have rows of their own for each of the splits train, validation and test."""
ROWS: Mapping[str, Callable[[], Iterator[Row]]] = MappingProxyType(
    {"python-code": python_code_rows, "python-docs": python_docs_rows}
    | {name: partial(rows, "train") for name, rows in SPLIT_ROWS.items()}
)
"""The corpora as rows with columns, of the split train where there are several."""


@lru_cache(maxsize=1)
def _made() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both corpora, about 10 MB: every document is read several times."""
    docs, code = kept_value("builtin-python", fingerprint("python"), _parsed_corpora)
    return tuple(docs), tuple(code)


def _parsed_corpora() -> tuple[list[str], list[str]]:
    """Parsing takes more than a second, and three times as long if garbage is searched for."""
    with collector_off():
        return _corpora_of(_parsed_files())


def _corpora_of(files: Iterable[tuple[Path, str, ast.Module]]) -> tuple[list[str], list[str]]:
    docs, code = list(_topics()), list[str]()
    root = _library_root()
    for path, source, tree in files:
        described = [
            entry
            for entry in (
                _summary(tree, ""),
                *(_summary(node, name) for name, node in _definitions(tree, "")),
            )
            if entry
        ]
        if described:
            docs.append(f"module {_module_name(path, root)}\n\n" + "\n\n".join(described) + "\n")
        lines = source.splitlines(keepends=True)
        code.extend(_source_of(node, lines) for node in _documented(tree, lines))
    return docs, code


def _library_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _topics_file() -> Path:
    path = _library_root() / "pydoc_data" / "topics.py"
    if not path.is_file():
        raise DataError(
            f"this Python ({sys.executable}) comes without {path}, so the built-in corpora cannot"
            " be made. Use a full Python, or data.path=FILE."
        )
    return path


def _source_files() -> list[Path]:
    root = _library_root()
    chosen = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [
            name for name in subfolders if name not in _SKIPPED_FOLDERS
        ]  # site-packages is large
        inner = Path(folder).relative_to(root)
        chosen += [(inner / name).as_posix() for name in files if name.endswith(".py")]
    return [root / name for name in sorted(chosen) if not _GENERATED.search(name)]


def _parsed_files() -> Iterator[tuple[Path, str, ast.Module]]:
    """Files of the standard library that parse, with source and tree."""
    for path in _source_files():
        try:
            source = path.read_text(encoding="utf-8").expandtabs().replace("\f", "")
            with warnings.catch_warnings(
                action="ignore"
            ):  # about old escapes; as errors they would change the corpus
                tree = ast.parse(source)
        except (SyntaxError, ValueError):  # templates and files in other encodings
            continue
        yield path, source, tree


def _module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _topics() -> Iterator[str]:
    """The literal dictionary `topics` of pydoc, read as text."""
    for node in ast.parse(_topics_file().read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(node.value)
            yield from (_clean(topics[name]) for name in sorted(topics))


def _clean(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines) + "\n"


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Definition]]:
    """Public functions and classes with their dotted names, classes before their methods, in source
    order.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            if not child.name.startswith("_"):
                yield f"{prefix}{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _definitions(child, prefix)


def _summary(node: ast.Module | _Definition, name: str) -> str:
    """Signature and docstring; empty where there is no docstring."""
    docstring = ast.get_docstring(node)
    if not docstring or not docstring.strip():
        return ""
    text = _clean(docstring).rstrip("\n")
    if isinstance(node, ast.Module):
        return text
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        title = f"class {name}{clause(bases, f'({bases})')}"
    else:
        title = f"{name}({ast.unparse(node.args)})"
    return f"{title}\n{textwrap.indent(text, '    ')}"


def _documented(node: ast.AST, lines: list[str]) -> Iterator[_Definition]:
    """Outermost functions and classes that have a docstring and are not too long; inside others,
    what they contain.
    """
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, _Definition)
            and ast.get_docstring(child, clean=False)
            and _length_of(child, lines) <= _LARGEST_DOCUMENT_CHARACTERS
        ):
            yield child
        elif isinstance(child, _Definition | ast.If | ast.Try):
            yield from _documented(child, lines)


def _lines_of(node: _Definition, lines: list[str]) -> list[str]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return lines[first - 1 : node.end_lineno]


def _length_of(node: _Definition, lines: list[str]) -> int:
    return sum(map(len, _lines_of(node, lines)))


def _source_of(node: _Definition, lines: list[str]) -> str:
    text = "".join(_lines_of(node, lines))
    if node.col_offset:
        text = textwrap.dedent(text)
    return text.rstrip() + "\n"


@lru_cache(maxsize=1)
def _made_rows() -> tuple[dict[str, str], ...]:
    return tuple(row for document in python_code() for row in _rows_of(document))


def _rows_of(document: str) -> Iterator[dict[str, str]]:
    lines = document.split("\n")
    for function in _functions(_parsed(document)):
        task, source = _task_of(function), _source_without_docstring(function, lines)
        if (
            len(task) in _TASK_CHARACTERS
            and len(source) in _FUNCTION_CHARACTERS
            and _is_function(source, function.name)
        ):
            kind = "a"
            if isinstance(function, ast.AsyncFunctionDef):
                kind = "an asynchronous"
            prompt = (
                f"Write {kind} Python function `{function.name}({ast.unparse(function.args)})`."
                f" {task}\n"
            )
            yield {"prompt": prompt, "completion": source, "document": document}


def _functions(node: ast.AST) -> Iterator[_Function]:
    """Functions and methods that stand alone: not inside other functions, without decorators, and
    with more than a docstring to do.
    """
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, _Function)
            and not child.decorator_list
            and any(map(_does_something, child.body[1:]))
        ):
            yield child
        elif isinstance(child, ast.ClassDef | ast.If | ast.Try):
            yield from _functions(child)


def _does_something(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not is_constant and not isinstance(statement, ast.Pass | ast.Raise)


def _task_of(function: _Function) -> str:
    """First paragraph of the docstring as one line; empty where there is none."""
    docstring = (ast.get_docstring(function) or "").strip()
    return " ".join(docstring.split("\n\n")[0].split())


def _source_without_docstring(function: _Function, lines: list[str]) -> str:
    docstring = function.body[0]
    body = "\n".join(lines[docstring.end_lineno : function.end_lineno]).lstrip("\n")
    head = "\n".join(lines[function.lineno - 1 : docstring.lineno - 1])
    return textwrap.dedent(f"{head}\n{body}").rstrip() + "\n"


def _is_function(source: str, name: str) -> bool:
    """Not so where text in several lines stands further left than the code, or the docstring stands
    in the line of `def`.
    """
    body = _parsed(source).body
    return len(body) == 1 and isinstance(body[0], _Function) and body[0].name == name


def _parsed(source: str) -> ast.Module:
    """An empty module when the source does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):  # as in _parsed_files
            return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])
