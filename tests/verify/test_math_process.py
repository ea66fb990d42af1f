"""math-verify in a process that can be ended."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from brimful.verify.math_process import MathProcess

pytest.importorskip("math_verify", reason="math-verify is not installed (extra math)")


@pytest.fixture(scope="module")
def process() -> Iterator[MathProcess]:
    process = MathProcess(cpu_s=1)
    yield process
    process.close()


def test_expressions_are_compared_by_meaning_from_any_thread(process: MathProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(
                process.compare, ["\\frac{2}{4}", "x+y", "\\frac{", "5"], ["0.5", "x-y", "1", "}{"]
            )
        )
    assert found == ["same", "different", "answer unread", "reference unread"]


def test_a_comparison_without_end_is_ended_and_the_next_one_starts_anew(
    process: MathProcess,
) -> None:
    assert process.compare("9^{9^{9^9}}", "1") == "ended"
    assert process.compare("1", "1") == "same"


def test_text_is_never_run_as_python(process: MathProcess) -> None:
    assert process.compare("__import__('os')._exit(1)", "1") in {"answer unread", "different"}
