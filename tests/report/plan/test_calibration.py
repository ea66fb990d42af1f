"""What is remembered of a device is shown so that a person can read it."""

import io
import time

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.hardware.calibration import Calibration, current_versions, note_run, save
from brimful.hardware.device import Device, abilities_of
from brimful.hardware.rates import SIXTEEN_BIT, THIN, Rates
from brimful.report.plan.calibration import measuring, render, to_json

DEVICE = Device(
    name="Some CPU",
    kind="cpu",
    memory_bytes=1 << 30,
    free_memory_bytes=1 << 29,
    abilities=abilities_of("cpu", None),
    threads=2,
    source="test",
)
RATES = Rates(
    {"matrix": {"fp32": 1.9e11, "bf16": 8.1e11}, THIN: {"fp32": 4e10}},
    {"matrix": 4e10, "copy": 2e10, "copy" + SIXTEEN_BIT: 3e10},
    {"copy": 8.2e10},
    launch_s=1.5e-6,
    host_s=4e-6,
    share=(0.8, 1.25),
)
EXTRAS = {"disk_bytes_per_s": 5e8, "loader_tokens_per_s": 2.5e8}


def test_a_device_without_anything_says_what_to_do() -> None:
    assert "never calibrated: `brimful calibrate`" in render(DEVICE, None, 120).plain
    assert to_json(DEVICE, None)["calibration"] is None


def test_rates_and_runs_are_tables() -> None:
    save(Calibration("Some CPU", RATES, 2, EXTRAS, current_versions(), time.time() - 1, 200))
    took = {"step_time_s": 1.2, "peak_memory_bytes": 1.5}
    note_run(
        "Some CPU",
        measured=took,
        predicted=dict.fromkeys(took, 1.0),
        key="quickstart",
        basis="measured, 2 threads",
    )
    lines = [" ".join(line.split()) for line in render(DEVICE, None, 120).plain.splitlines()]

    for line in (
        "200 operators; nine of ten take 0.80 to 1.25 times what these rates say",
        "fp32 bf16",
        "matrix 190 810",
        "thin matrix 40 -",
        "copy 20 30 82 -",
        "smallest operator 1.5 us, issuing one 4.0 us",
    ):
        assert line in lines
    assert "step_time_s 1.20 1.05 1 measured, 2 threads" in lines
    assert "peak_memory_bytes 1.50 not applied 1" in lines
    assert any("476.8 MiB/s" in line and "250M tokens/s" in line for line in lines)
    assert not any(line.startswith("!") for line in lines)


def test_the_json_holds_all_of_it(snapshot: SnapshotAssertion) -> None:
    save(Calibration("Some CPU", RATES, 2, EXTRAS, current_versions(), 0.0, 200))
    took = {"step_time_s": 1.2, "peak_memory_bytes": 1.5}
    note_run(
        "Some CPU",
        measured=took,
        predicted=dict.fromkeys(took, 1.0),
        key="quickstart",
        basis="measured, 2 threads",
    )
    told = to_json(DEVICE, 1)

    assert told["calibration"]["rates"]["launch_s"] == RATES.launch_s
    assert told["runs"][0]["key"] == "quickstart"
    assert [(entry["name"], entry["applied"], entry["runs"]) for entry in told["corrections"]] == [
        ("peak_memory_bytes", None, 1),
        ("step_time_s", pytest.approx(1.2**0.25), 1),
    ]
    assert told["unused"] == snapshot


def test_progress_is_silent_outside_of_a_terminal() -> None:
    console = Console(file=io.StringIO())
    with measuring(console) as tell:
        tell("product", 1, 2)

    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_a_terminal_shows_what_is_measured_from_the_first_moment_on() -> None:
    """Before it is known how much there is to measure."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with measuring(console) as tell:
        tell("matrix products", 1, 9)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0/?" in shown
    assert "1/9" in shown
