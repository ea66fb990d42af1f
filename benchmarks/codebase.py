"""The codebase in figures: size, density, complexity, branches on the kind of run, names with
several meanings.

    python benchmarks/codebase.py                    # this checkout
    python benchmarks/codebase.py OTHER [OTHER ...]  # other checkouts beside it, one column each
    python benchmarks/codebase.py --sites            # where the branches on the kind of run are

Nothing is imported or run: the figures come from the syntax trees.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

LINE_LENGTH = 100
KIND_PACKAGE = "kinds"
"""The one package that may ask what kind of run there is."""
SPLIT_TYPES = frozenset(
    {"TokenSplit", "ExampleSplit", "EncodedLabels", "MaskedSplit", "LabelledSplit"}
)
KIND_PREDICATES = frozenset({"is_encoder", "is_tuned", "kind_of"})
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.BoolOp,
    ast.comprehension,
    ast.match_case,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path) -> list[Path]:
    """The Python files of the package in a checkout."""
    return sorted((root / "src").rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def source_lines(path: Path) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    prose = {line for node in ast.walk(ast.parse(text)) for line in _docstring_lines(node)}
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        1
        for number, line in lines
        if line.strip() and not line.strip().startswith("#") and number not in prose
    )


def _docstring_lines(node: ast.AST) -> range:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def branches(function: ast.AST) -> int:
    """Cyclomatic complexity, with ternaries and comprehensions counted."""
    return 1 + sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def kind_sites(tree: ast.AST) -> Iterator[int]:
    """Lines that ask what kind of run there is.

    A site is a comparison of a `method`, a use of `reads`, a call or attribute such as
    `is_encoder`, an `isinstance` of a split, or a test whether there are `labels`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _compares_kind(node):
            yield node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if node.attr == "reads" or node.attr in KIND_PREDICATES:
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _asks_kind(node):
            yield node.lineno


def _compares_kind(node: ast.Compare) -> bool:
    left = node.left
    if isinstance(left, ast.Call) and _is_lookup(left, "method"):
        return True
    name = _last_name(left)
    is_none = isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None
    return name == "method" or (name == "labels" and is_none)


def _asks_kind(node: ast.Call) -> bool:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name != "isinstance":
        return name in KIND_PREDICATES
    named = {_last_name(part) for part in ast.walk(node.args[1]) if isinstance(part, ast.expr)}
    return bool(named & SPLIT_TYPES)


def _is_lookup(node: ast.Call, key: str) -> bool:
    is_get = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    first = node.args[0] if node.args else None
    return is_get and isinstance(first, ast.Constant) and first.value == key


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.NamedExpr):
        return _last_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def all_kind_sites(root: Path) -> list[str]:
    """`path:line` of every branch on the kind of run outside the package of kinds."""
    found = []
    for path in modules(root):
        place = path.relative_to(root / "src" / "brimful")
        if place.parts[0] != KIND_PACKAGE:
            found += [f"{place}:{line}" for line in sorted(set(kind_sites(parse(path))))]
    return found


def names_with_several_meanings(root: Path) -> list[str]:
    """Class names that more than one module defines."""
    places = defaultdict(set)
    for path in modules(root):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(path)
    return sorted(name for name, paths in places.items() if len(paths) > 1)


def formatted_lines(root: Path) -> int:
    """Lines of the package at 100 columns, whatever its own format is."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [path.read_text(encoding="utf-8") for path in modules(root)]
        for number, text in enumerate(texts):
            copy = Path(folder) / f"module_{number}.py"
            copy.write_text(text.replace("# fmt: skip", "").replace("# fmt: off", ""), "utf-8")
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet"]
        subprocess.run([*command, "--line-length", str(LINE_LENGTH), folder], check=True)
        return sum(len(path.read_text("utf-8").splitlines()) for path in Path(folder).glob("*.py"))


def figures(root: Path) -> dict[str, str]:
    """Every figure of one checkout, by name."""
    trees = {path: parse(path) for path in modules(root)}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, Function)]
    statements = _count(nodes, lambda node: isinstance(node, ast.stmt))
    written = sum(map(source_lines, trees))
    texts = [path.read_text(encoding="utf-8") for path in trees]
    packages = {path.parent for path in trees}
    many_branches = sum(branches(function) > 10 for function in functions)
    several = names_with_several_meanings(root)
    sites = all_kind_sites(root)
    ternaries = _count(nodes, lambda node: isinstance(node, ast.IfExp))
    comprehensions = _count(nodes, lambda node: isinstance(node, ast.comprehension))
    wide = sum(len(line) > LINE_LENGTH for text in texts for line in text.splitlines())
    return {
        "files / packages": f"{len(trees)} / {len(packages)}",
        "lines at 100 columns": f"{formatted_lines(root):,}",
        "lines over 100 columns": f"{wide:,}",
        "`fmt: skip`": str(sum(text.count("fmt: skip") for text in texts)),
        "syntax nodes": f"{len(nodes):,}",
        "source lines (as written)": f"{written:,}",
        "nodes a source line": f"{len(nodes) / written:.1f}",
        "ternaries per 1,000 statements": f"{1000 * ternaries / statements:.0f}",
        "comprehensions per 1,000 statements": f"{1000 * comprehensions / statements:.0f}",
        "functions with over 10 branches, of 100": f"{100 * many_branches / len(functions):.1f}",
        "most branches in a function": str(max(map(branches, functions))),
        "branches on the kind of run": f"{len(sites)} in {len({s.split(':')[0] for s in sites})}",
        "class names with several meanings": str(len(several)),
        **{
            f"syntax nodes of {folder}": f"{nodes_in(root / folder):,}"
            for folder in ("tests", "benchmarks")
        },
    }


def nodes_in(folder: Path) -> int:
    """Syntax nodes of all Python files of a folder."""
    return sum(1 for path in folder.rglob("*.py") for _ in ast.walk(parse(path)))


def _count(nodes: list[ast.AST], wanted: Callable[[ast.AST], bool]) -> int:
    return sum(wanted(node) for node in nodes)


def main() -> None:
    """Print the table, or with `--sites` the branches on the kind of run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[])
    parser.add_argument("--sites", action="store_true")
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent.parent
    if arguments.sites:
        print("\n".join(all_kind_sites(here)))
        print("\n".join(names_with_several_meanings(here)))
        return
    columns = {str(root): figures(root) for root in [*arguments.checkouts, here]}
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name in next(iter(columns.values())):
        print(f"| {name} | " + " | ".join(column[name] for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
