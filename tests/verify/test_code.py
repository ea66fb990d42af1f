import gzip
import json
from pathlib import Path

from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.verify.code import MBPP_TOGETHER, humaneval_program, mbpp_program
from brimful.verify.sandbox import Sandbox


def lines(path: Path) -> list[JsonDict]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def test_reference_solutions_of_humaneval_pass_and_ruined_ones_fail(
    shared_data: Path, sandbox: Sandbox
) -> None:
    """Every eleventh, and the three whose tests use helpers of the prompt; all 164 in
    benchmarks/sandbox.py.
    """
    problems = lines(shared_data / "human_eval" / "HumanEval.jsonl.gz")
    chosen = [problems[number] for number in sorted({32, 38, 50, *range(0, 164, 11)})]

    right = sandbox.run_all(
        [humaneval_program(problem, problem["canonical_solution"]) for problem in chosen]
    )
    wrong = sandbox.run_all([humaneval_program(problem, "    return None\n") for problem in chosen])

    assert {result.status for result in right} == {"passed"}
    assert {result.status for result in wrong} <= {"failed", "error"}


def test_the_published_samples_give_their_published_result(
    shared_data: Path, sandbox: Sandbox
) -> None:
    """README of openai/human-eval: pass@1 of 0.5 over these six; the first three fail."""
    folder = shared_data / "human_eval"
    (problem,) = lines(folder / "example_problem.jsonl")

    results = [
        sandbox.run(humaneval_program(problem, sample["completion"]))
        for sample in lines(folder / "example_samples.jsonl")
    ]

    assert [result.status for result in results] == [
        "blocked",
        "timeout",
        "error",
        "passed",
        "passed",
        "passed",
    ]


def test_reference_code_of_mbpp_passes_with_the_few_that_need_one_process(
    shared_data: Path, sandbox: Sandbox
) -> None:
    problems = {
        problem["task_id"]: problem for problem in lines(shared_data / "mbpp" / "mbpp.jsonl")
    }
    chosen = [
        problems[number] for number in sorted({126, 533, 596, *MBPP_TOGETHER, *range(1, 974, 60)})
    ]

    results = sandbox.run_all([mbpp_program(problem, problem["code"]) for problem in chosen])

    assert {result.status for result in results} == {"passed"}
    assert {
        problem["task_id"]
        for problem, result in zip(chosen, results, strict=True)
        if result.mode == "together"
    } == set(MBPP_TOGETHER)


def test_the_sanitized_form_reads_as_well(shared_data: Path, sandbox: Sandbox) -> None:
    problems = {
        problem["task_id"]: problem
        for problem in json.loads(
            (shared_data / "mbpp" / "sanitized-mbpp.json").read_text(encoding="utf-8")
        )
    }
    chosen = [problems[number] for number in (2, 82, 737, 787)]

    assert {sandbox.run(mbpp_program(problem, problem["code"])).status for problem in chosen} == {
        "passed"
    }


def test_functions_are_what_the_reference_defines_and_what_nobody_defines() -> None:
    problem = {
        "code": "import sys\nfrom math import pi as p\ndef sum(a): return a\ndef unused(): pass",
        "test_list": ["assert sum([1]) == sys.getsizeof(x)", "assert other(abs(y)) == len(s)"],
        "test_setup_code": "x = 1",
        "test_imports": ["import s, y.z"],
    }

    program = mbpp_program(problem, "def sum(a): return 2")

    assert program.functions == ("sum", "other")
    assert program.helpers == "import sys\nimport s, y.z"
    assert program.code == "def sum(a): return 2"


def test_a_problem_of_another_shape_is_refused(refuses: Refuses) -> None:
    with refuses(DataError):
        humaneval_program({"prompt": "def f():"}, "")
    with refuses(DataError, names=["without test_list"]):
        mbpp_program({"code": ""}, "")
    with refuses(DataError):
        mbpp_program({"task_id": 7, "code": "", "test_list": ["assert"]}, "")
