"""Programs to judge from the problems of HumanEval (Chen et al. 2021, arXiv 2107.03374) and MBPP
(Austin et al. 2021, arXiv 2108.07732).

Fields are those of the published files. What a problem's own author wrote (prompt, tests,
reference) is trusted; a model's completion is not.
"""

import ast
import builtins
from collections.abc import Iterator, Mapping
from typing import Any

from brimful.base.errors import DataError
from brimful.base.types import Json
from brimful.verify.sandbox import Program

MBPP_TOGETHER: Mapping[int, str] = {
    367: "the set-up makes trees of the code's class Node",
    601: "the asserts pass objects of the code's class Pair",
    927: "the set-up makes trees of the code's class Node",
}
"""Tasks of MBPP whose tests need the candidate's own objects, and why. Found by judging all
references apart (benchmarks/sandbox.py).
"""
MBPP_SECONDS: Mapping[int, float] = {123: 25.0}
"""Time limits of tasks whose reference is slow: four times what it needs where the record was made
(benchmarks/records/sandbox.json).
"""


def humaneval_program(problem: Json, completion: str) -> Program:
    """A completion of HumanEval's prompt and the problem's `check`.

    Helpers that a prompt defines (`poly`, `encode_cyclic`) are the prompt's own in the tests,
    whatever the completion makes of them.

    Args:
        problem: `prompt`, `test` and `entry_point`.
        completion: What follows the prompt.

    Raises:
        DataError: A field is missing.
    """
    prompt, test, name = _fields(problem, "prompt", "test", "entry_point")
    return Program(
        code=f"{prompt}{completion}\n",
        tests=f"{test}\ncheck({name})\n",
        functions=(name,),
        helpers=f"{prompt}    pass\n",
    )


def mbpp_program(problem: Json, code: str) -> Program:
    """Code for a problem of MBPP, full or sanitized, and the problem's asserts.

    What the asserts use must come from the code if the problem's reference defines it, or if nobody
    else does. Modules that only the reference imports are there for the asserts too.

    Args:
        problem: `test_list` and `code` (the reference, of which only names are used), and as the
            file has them `test_setup_code`, `test_imports`, `task_id`.
        code: A whole program.

    Raises:
        DataError: A field is missing, or tests or reference are no Python.
    """
    asserts, reference = _fields(problem, "test_list", "code")
    task = problem.get("task_id", 0)
    imports = "\n".join(problem.get("test_imports", []))
    tests = "\n".join([problem.get("test_setup_code", ""), *asserts])
    try:
        used, made = _names(ast.parse(f"{imports}\n{tests}"))
        imported, defined = _top_level(ast.parse(reference))
    except SyntaxError as error:
        raise DataError(
            f"the tests or the reference of MBPP problem {task} are no Python: {error}"
        ) from None
    known = made | imported.keys() | set(vars(builtins))
    return Program(
        code=code,
        tests=tests,
        functions=tuple(name for name in used if name in defined or name not in known),
        helpers="\n".join(
            [*(statement for name, statement in imported.items() if name in used), imports]
        ),
        together=task in MBPP_TOGETHER,
        seconds=MBPP_SECONDS.get(task),
    )


def _fields(problem: Json, *names: str) -> Iterator[Any]:
    missing = [name for name in names if name not in problem]
    if missing:
        raise DataError(
            f"a problem without {', '.join(missing)}; it has: {', '.join(problem) or 'nothing'}"
        )
    return (problem[name] for name in names)


def _names(tree: ast.AST) -> tuple[list[str], set[str]]:
    """Names that are read, in order, and names that are set or imported."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Load))
    return list(used), {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(
        _imports(tree)
    )


def _top_level(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
    """Names that a module imports, each with its statement, and names of its functions and
    classes.
    """
    return _imports(tree), {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def _imports(tree: ast.AST) -> dict[str, str]:
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {
        alias.asname or alias.name.partition(".")[0]: ast.unparse(node)
        for node in statements
        for alias in node.names
    }
