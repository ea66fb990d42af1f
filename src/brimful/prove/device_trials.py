"""What is tried of a GPU itself: the brim of its memory, its sensors, its speed, and the tests that
need one.
"""

import importlib.util
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from brimful.base.env import of_a_plain_process
from brimful.base.text import plural
from brimful.base.units import MIB, format_bytes
from brimful.hardware.monitored import Monitored
from brimful.planning.allocator_history import HistoryComparison
from brimful.prove import memory_history
from brimful.prove.plain_training import FIRST_STEPS, LOOP, PlainJob
from brimful.prove.record import HELD, SKIPPED, Outcome
from brimful.prove.training import outcome_of
from brimful.prove.workplace import TrialFailed, Workplace
from brimful.runs.folder import RunFolder

GPU_TESTS = Path("tests/training/test_gpu.py")
SAMPLE_EVERY_S = 1.0
SAME_PEAK = 0.01
"""How far the model of the allocator may be off at the peak of a training."""
CLOSE = 0.1
"""How far apart two readings of one sensor may be, sampled at other moments."""


def keeps_the_edge(place: Workplace, name: str, recipe: Mapping[str, Any]) -> Outcome:
    """Run the largest micro-batch that the plan calls possible, and say what memory did; then the
    next larger one, which should run out of it: a plan that holds back memory is of less use.

    Raises:
        TrialFailed: a run did not get to its end.
    """
    plan = {**recipe["plan"], "margin": "tight"}
    run = place.run_recipe(name, {**recipe, "plan": plan})
    outcome = outcome_of(run)
    largest = outcome.facts["micro_batch"]
    what = f"the largest micro-batch, {largest}, ran through"
    if run.out_of_memory:
        return replace(outcome, what=_what_memory_did(run))
    if largest == outcome.facts["batch"]:
        return replace(outcome, what=f"{what}; it is the whole batch, so there is no next one")
    beyond = place.run_recipe(
        f"{name}-beyond", {**recipe, "plan": {**plan, "micro_batch": largest + 1}}
    )
    then = "ran through as well: the plan is careful"
    if beyond.out_of_memory:
        then = "did not fit: " + _what_memory_did(beyond)
    return replace(outcome, what=f"{what}; {largest + 1} {then}")


def _what_memory_did(run: RunFolder) -> str:
    """Return how often memory ran out in a run, and how it ended all the same."""
    times = plural(len(run.out_of_memory), "time")
    last = run.out_of_memory[-1].smaller
    return f"memory ran out {times} and the run ended with micro-batches of {last}"


def reads_like_nvidia_smi(place: Workplace, name: str, recipe: Mapping[str, Any]) -> Outcome:
    """Train while nvidia-smi is asked every second, and compare it with the run's monitor.

    Raises:
        TrialFailed: memory or power differ.
    """
    if shutil.which("nvidia-smi") is None:
        return Outcome(status=SKIPPED, what="nvidia-smi is not on this machine")
    samples: list[tuple[float, float]] = []
    has_ended = threading.Event()
    watcher = threading.Thread(target=_sample, args=(samples, has_ended), daemon=True)
    watcher.start()
    try:
        monitored = place.run_recipe(name, recipe).monitored
    finally:
        has_ended.set()
        watcher.join()
    return compared(monitored, samples)


def compared(monitored: Monitored, samples: list[tuple[float, float]]) -> Outcome:
    """Return how the monitor's peaks compare with samples of memory in bytes and power in watts.

    Raises:
        TrialFailed: they differ by more than `CLOSE`.
    """
    memory, power = monitored.peak("device_memory_bytes"), monitored.peak("power_w")
    if not samples or memory is None:
        return Outcome(status=SKIPPED, what="nvidia-smi or the monitor read nothing")
    theirs = (max(each[0] for each in samples), max(each[1] for each in samples))
    facts = {
        "memory_bytes": [memory, theirs[0]],
        "power_w": [power, theirs[1]],
        "samples": len(samples),
        "median_power_w": statistics.median(each[1] for each in samples),
    }
    differ = [
        what
        for what, ours, other in (("memory", memory, theirs[0]), ("power", power, theirs[1]))
        if ours is not None and abs(ours - other) > CLOSE * other
    ]
    if differ:
        reason = f"peak {' and '.join(differ)} of the monitor and of nvidia-smi differ"
        raise TrialFailed(reason, Outcome(facts=facts))
    return Outcome(
        status=HELD, what="peak memory and peak power are within a tenth of each other", facts=facts
    )


def _sample(samples: list[tuple[float, float]], has_ended: threading.Event) -> None:
    while not has_ended.wait(SAMPLE_EVERY_S):
        read = nvidia_smi_reads()
        if read is not None:
            samples.append(read)


def nvidia_smi_reads() -> tuple[float, float] | None:
    """Return the first device's used memory in bytes and power in watts; None where they cannot be
    read.
    """
    command = [
        "nvidia-smi",
        "--query-gpu=memory.used,power.draw",
        "--format=csv,noheader,nounits",
        "--id=0",
    ]
    read = subprocess.run(  # noqa: S603 - a fixed command
        command, capture_output=True, text=True, check=False
    ).stdout
    try:
        memory_mib, power_w = map(float, read.splitlines()[0].split(","))
    except (ValueError, IndexError):
        return None
    return memory_mib * MIB, power_w


def models_the_allocator(place: Workplace, name: str, base: Path) -> Outcome:
    """Train a model with a plain loop, and give its requests for memory to the model of torch's
    allocator that peaks are predicted with.

    Args:
        base: Folder of the model.

    Raises:
        TrialFailed: the training failed, or the model's peak is off by more than `SAME_PEAK`.
    """
    job = PlainJob(
        trainer=LOOP,
        model=str(base.absolute()),
        device=place.device,
        sequences=16,
        sequence_length=1024,
        micro_batch=8,
        steps=FIRST_STEPS + 1,
        precision="bf16",
        compiled=False,
    )
    found = HistoryComparison(
        **place.result_of(name, "a plain PyTorch loop", job.command(memory_history.MODULE))
    )
    outcome = Outcome(status=HELD, what=_beside_the_model(found), facts=asdict(found))
    if abs(found.error) > SAME_PEAK:
        raise TrialFailed(outcome.what, outcome)
    return outcome


def _beside_the_model(found: HistoryComparison) -> str:
    """Return in words how the model of the allocator did."""
    if found.same_reserved == found.requests:
        return f"after each of {found.requests:,} requests the model had reserved the same"
    return (
        f"the model reserved {format_bytes(found.modelled_bytes)} at the most, torch"
        f" {format_bytes(found.peak_reserved_bytes)}; after {found.same_reserved:,} of"
        f" {found.requests:,} requests both had reserved the same"
    )


def calibrates(place: Workplace) -> Outcome:
    """Measure the device, as `brimful calibrate` does.

    Raises:
        TrialFailed: the command failed.
    """
    place.call("calibrate", "calibrate")
    return Outcome(status=HELD, what="measured; later plans use what it found")


def passes_its_tests(place: Workplace) -> Outcome:
    """Run brimful's own tests that need a GPU, where they are.

    Raises:
        TrialFailed: a test failed.
    """
    if not GPU_TESTS.is_file() or importlib.util.find_spec("pytest") is None:
        return Outcome(
            status=SKIPPED, what="needs a checkout of brimful as the current folder, with pytest"
        )
    with place.output_of("tests").open("w", encoding="utf-8") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=of_a_plain_process(),
            check=False,
        )
    last = place.output_of("tests").read_text(encoding="utf-8").strip().splitlines()[-1]
    if ended.returncode:
        raise TrialFailed(f"pytest ended with exit code {ended.returncode}: {last}")
    return Outcome(status=HELD, what=last)
