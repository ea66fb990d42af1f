"""The sandbox on real problems and at full speed: references that must pass, ruined ones and cheats
that must not, programs per second.

python benchmarks/sandbox.py            # writes records/sandbox.json; about four minutes on 2 cores

A rate "a core" is one over the CPU seconds that a program takes in all processes; wall rates beside
it depend on what else runs.
"""

import argparse
import dataclasses
import functools
import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from brimful.base.env import shared_data_folder
from brimful.verify.code import MBPP_TOGETHER, humaneval_program, mbpp_program
from brimful.verify.isolation import LEVELS, ProgramLimits
from brimful.verify.sandbox import Program, ProgramResult, Sandbox
from canary import canaries, squaring
from record import summary, write_record

PATIENT = ProgramLimits(seconds=60.0)
"""For references, whose time is to be measured."""
ROUNDS, PROGRAMS_A_ROUND = 9, 200

WRONG = """
def _wrong(value):
    if isinstance(value, bool): return not value
    if isinstance(value, int): return value + 1
    if isinstance(value, (float, complex)): return value * 1.5 + 1
    if isinstance(value, str): return value + 'x'
    if isinstance(value, list): return value + [0]
    if isinstance(value, tuple): return value + (0,)
    if isinstance(value, (set, frozenset)): return value ^ {0}
    if isinstance(value, dict): return {**value, 'x': 0}
    return None if value is not None else 0
"""
"""Off by one, or by an item; further for floats, because a test with a tolerance of 0.1 % forgives
1 in 4,188 (MBPP 82).
"""
CORRUPTIONS: Mapping[str, Callable[[str], str]] = {
    "returns None": lambda name: f"\ndef {name}(*_, **__): return None\n",
    "raises": lambda name: f"\ndef {name}(*_, **__): raise ValueError('ruined')\n",
    "returns another value": lambda name: (
        f"{WRONG}\n_right = {name}\ndef {name}(*a, **k): return _wrong(_right(*a, **k))\n"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed-only", action="store_true", help="measure speed and write nothing")
    speed = {level: _speed(level) for level in LEVELS}
    if parser.parse_args().speed_only:
        print(json.dumps(speed, indent=2))
        return
    folder = shared_data_folder()
    if folder is None:
        raise SystemExit(
            "no real data: set BRIMFUL_DATA to the folder that holds human_eval and mbpp"
        )
    with Sandbox() as sandbox:
        values = {
            "level": sandbox.level,
            "limits": dataclasses.asdict(sandbox.limits),
            "speed": speed,
        }
        values |= _humaneval(sandbox, folder / "human_eval") | _mbpp(sandbox, folder / "mbpp")
    values["canary"] = {level: _canary(level) for level in LEVELS[:2]}
    print(json.dumps(values, indent=2))
    write_record("sandbox", values)


def _speed(level: str) -> dict[str, Any]:
    """Trivial programs, one at a time, in rounds; CPU time of this process, the zygote and all that
    it forked.
    """
    program = Program("def double(x): return 2 * x", "assert double(2) == 4", ("double",))
    wall_ms, cpu_ms = [], []
    with Sandbox(level=level, accept_unsandboxed=True) as sandbox:
        sandbox.run_all([program] * 10, workers=1)
        (zygote,) = [child for child in psutil.Process().children() if child.is_running()]
        for _ in range(ROUNDS):
            started_s, before_s = time.perf_counter(), _cpu_s(zygote)
            results = sandbox.run_all([program] * PROGRAMS_A_ROUND, workers=1)
            assert {result.status for result in results} == {"passed"}
            wall_ms.append((time.perf_counter() - started_s) / PROGRAMS_A_ROUND * 1000)
            cpu_ms.append((_cpu_s(zygote) - before_s) / PROGRAMS_A_ROUND * 1000)
        cores = len(os.sched_getaffinity(0))
        started_s = time.perf_counter()
        sandbox.run_all([program] * PROGRAMS_A_ROUND * cores, workers=cores)
        all_cores_per_s = PROGRAMS_A_ROUND * cores / (time.perf_counter() - started_s)
    cpu = summary(cpu_ms)
    return {
        "cpu_ms_a_program": cpu,
        "wall_ms_a_program_one_at_a_time": summary(wall_ms),
        "programs_per_s_a_core": {"median": 1000 / cpu["median"], "best": 1000 / cpu["min"]},
        f"programs_per_s_wall_on_{cores}_cores": all_cores_per_s,
        "bare_fork_cpu_ms": summary([_bare_fork_cpu_ms() for _ in range(ROUNDS)]),
    }


def _cpu_s(zygote: psutil.Process) -> float:
    times = zygote.cpu_times()
    return (
        float(times.user + times.system + times.children_user + times.children_system)
        + time.process_time()
    )


def _bare_fork_cpu_ms() -> float:
    """A fork of a small Python process that does nothing, and its end: what no sandbox of this kind
    goes below, twice.
    """
    code = (
        "import os\nb = os.times()\nfor _ in range(200):\n p = os.fork()\n if not p: os._exit(0)\n"
        " os.waitpid(p, 0)\nprint((sum(os.times()[:4]) - sum(b[:4])) * 5)"
    )
    import subprocess
    import sys

    return float(
        subprocess.run(
            [sys.executable, "-S", "-c", code], capture_output=True, check=True, text=True
        ).stdout
    )


def _humaneval(sandbox: Sandbox, folder: Path) -> dict[str, Any]:
    problems = _lines(folder / "HumanEval.jsonl.gz")
    right = [humaneval_program(problem, problem["canonical_solution"]) for problem in problems]
    ids = [problem["task_id"] for problem in problems]
    samples = _lines(folder / "example_samples.jsonl")
    (example,) = _lines(folder / "example_problem.jsonl")
    judged = sandbox.run_all(
        [humaneval_program(example, sample["completion"]) for sample in samples]
    )
    values = _references(sandbox, ids, right) | {"corrupted": _corrupted(sandbox, ids, right)}
    published = {
        "pass@1": sum(result.status == "passed" for result in judged) / len(judged),
        "published pass@1": 0.5,
        "source": "README of openai/human-eval",
    }
    return {
        "humaneval": values,
        "example_samples": {
            **published,
            "statuses": [result.status for result in judged],
            "n": len(judged),
        },
    }


def _mbpp(sandbox: Sandbox, folder: Path) -> dict[str, Any]:
    files = {
        "mbpp": _lines(folder / "mbpp.jsonl"),
        "mbpp_sanitized": json.loads((folder / "sanitized-mbpp.json").read_text(encoding="utf-8")),
    }
    values: dict[str, Any] = {}
    for name, problems in files.items():
        ids = [problem["task_id"] for problem in problems]
        right = [mbpp_program(problem, problem["code"]) for problem in problems]
        together = {number: MBPP_TOGETHER[number] for number in ids if number in MBPP_TOGETHER}
        values[name] = _references(sandbox, ids, right) | {
            "judged_together": together,
            "corrupted": _corrupted(sandbox, ids, right),
        }
    return values


def _references(
    sandbox: Sandbox, ids: Sequence[object], programs: Sequence[Program]
) -> dict[str, Any]:
    results = sandbox.run_all(
        [dataclasses.replace(program, seconds=PATIENT.seconds) for program in programs]
    )
    others = {
        str(name): f"{result.status}: {result.detail}"
        for name, result in zip(ids, results, strict=True)
        if result.status != "passed"
    }
    slow = {
        str(name): round(result.seconds, 2)
        for name, result in zip(ids, results, strict=True)
        if result.seconds > 1
    }
    return {
        "n": len(results),
        "passed": len(results) - len(others),
        "not_passed": others,
        "seconds_where_above_1": slow,
    }


def _corrupted(
    sandbox: Sandbox, ids: Sequence[object], programs: Sequence[Program]
) -> dict[str, Any]:
    """References with their function replaced; a class is left out, because these corruptions are
    of functions.
    """
    found = {}
    for kind, corrupt in CORRUPTIONS.items():
        ruined = [
            dataclasses.replace(
                program,
                code=program.code
                + functools.reduce(lambda text, name: text + corrupt(name), program.functions, ""),
            )
            for program in programs
        ]
        kept = [
            (name, program)
            for name, program in zip(ids, ruined, strict=True)
            if not program.together
        ]
        results = sandbox.run_all([program for _, program in kept])
        passed = [
            str(name)
            for (name, _), result in zip(kept, results, strict=True)
            if result.status == "passed"
        ]
        found[kind] = {"n": len(results), "statuses": _statuses(results), "passed": passed}
    return found


def _canary(level: str) -> dict[str, Any]:
    programs = canaries()
    with Sandbox(level=level) as sandbox:
        results = sandbox.run_all(list(programs.values()))
        honest = sandbox.run(squaring("def f(x): return x * x")).status
    passed = [
        name for name, result in zip(programs, results, strict=True) if result.status == "passed"
    ]
    return {
        "n": len(results),
        "passed": passed,
        "statuses": _statuses(results),
        "honest_code": honest,
    }


def _statuses(results: Sequence[ProgramResult]) -> dict[str, int]:
    return dict(sorted(Counter(result.status for result in results).items()))


def _lines(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


if __name__ == "__main__":
    main()
