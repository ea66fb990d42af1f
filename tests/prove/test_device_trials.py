"""Trials of a GPU, as far as a machine without one can run them."""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.hardware.monitored import Monitored, MonitoredSession, Sample
from brimful.planning.allocator_history import HistoryComparison
from brimful.prove import device_trials
from brimful.prove.device_trials import (
    compared,
    keeps_the_edge,
    models_the_allocator,
    nvidia_smi_reads,
    passes_its_tests,
)
from brimful.prove.record import HELD, SKIPPED
from brimful.prove.workplace import TrialFailed, Workplace

GIB = 2**30


@pytest.mark.usefixtures("warm_processes")
def test_the_largest_micro_batch_runs(place: Workplace, toy: Mapping[str, Any]) -> None:
    recipe = {**toy, "training": {"steps": 3}, "evaluation": {"every": 3}}

    outcome = keeps_the_edge(place, "edge", recipe)

    assert outcome.status == HELD
    assert outcome.what.startswith("the largest micro-batch, 4, ran through; it is the whole batch")


@pytest.mark.usefixtures("warm_processes")
def test_the_next_micro_batch_is_tried_after_the_largest(
    place: Workplace, toy: Mapping[str, Any]
) -> None:
    plan = {**toy["plan"], "micro_batch": 2}
    recipe = {**toy, "training": {"steps": 3}, "evaluation": {"every": 3}, "plan": plan}

    outcome = keeps_the_edge(place, "edge", recipe)

    assert outcome.facts["micro_batch"] == 2
    assert "2, ran through; 3 ran through as well" in outcome.what
    assert place.run_of("edge-beyond").plan.micro_batches[0] == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("same", [12, 11])
def test_the_model_of_the_allocator_holds_where_its_peak_does(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, refuses: Refuses, same: int
) -> None:
    """What the process of the training prints is given; tests/prove/test_memory_history.py runs
    it.
    """
    told = HistoryComparison(12, same, 40 * GIB, (same + 28) * GIB)
    monkeypatch.setattr(Workplace, "result_of", lambda *_: asdict(told))

    if same == 12:
        outcome = models_the_allocator(place, "allocator", place.folder)
        assert (outcome.status, outcome.facts["requests"]) == (HELD, 12)
        return
    with refuses(TrialFailed):
        models_the_allocator(place, "allocator", place.folder)


def _monitored(memory_bytes: float, power_w: float) -> Monitored:
    readings = {"device_memory_bytes": memory_bytes, "power_w": power_w}
    samples = (Sample(1.0, 1.0, readings), Sample(2.0, 1.0, readings))
    return Monitored((MonitoredSession(samples=samples),))


def test_readings_that_agree_hold_and_others_do_not(refuses: Refuses) -> None:
    theirs = [(10.0 * GIB, 300.0), (11.0 * GIB, 350.0)]

    assert compared(_monitored(11.2 * GIB, 340.0), theirs).status == HELD
    with refuses(TrialFailed):
        compared(_monitored(8.0 * GIB, 340.0), theirs)
    with refuses(TrialFailed):
        compared(_monitored(11.2 * GIB, 200.0), theirs)
    assert compared(_monitored(11.2 * GIB, 340.0), []).status == SKIPPED


def test_what_nvidia_smi_prints_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nprint('1024, 71.50')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert nvidia_smi_reads() == (float(GIB), 71.5)

    program.write_text(f"#!{sys.executable}\nprint('No devices were found')\n")
    assert nvidia_smi_reads() is None


def test_without_a_checkout_the_tests_are_skipped(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert passes_its_tests(place).status == SKIPPED


@pytest.mark.parametrize(("body", "holds"), [("assert True", True), ("assert False", False)])
def test_a_checkout_is_tested(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, holds: bool
) -> None:
    tests = tmp_path / device_trials.GPU_TESTS
    tests.parent.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu: x"]\n')
    tests.write_text(f"import pytest\n\n@pytest.mark.gpu\ndef test_it():\n    {body}\n")
    monkeypatch.chdir(tmp_path)

    if holds:
        assert "1 passed" in passes_its_tests(place).what
    else:
        with pytest.raises(TrialFailed, match=r"exit code 1: .*1 failed"):
            passes_its_tests(place)
