"""Memory over time is drawn from what was sampled, else from what every step recorded, with the
plan's peak on the same scale.
"""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.units import GIB
from brimful.report.page.memory_page import MemoryView, memory_view
from brimful.runs import read_run

GPU_PLAN = {
    "device": {"kind": "cuda", "name": "T4", "memory_bytes": 15 * GIB},
    "predicted": {"peak_memory_bytes": 11.0 * GIB},
    "memory_terms": {"weights": 6 * GIB, "activations": 5 * GIB},
}


def view_of(folder: Path) -> MemoryView:
    view = memory_view(read_run(folder))
    assert view is not None
    return view


def texts(view: MemoryView) -> list[str]:
    assert view.drawing is not None
    elements = Xml.fromstring(view.drawing.wide).iter()  # noqa: S314 - drawn here
    return [
        "".join(element.itertext()).strip() for element in elements if element.tag.endswith("}text")
    ]


def watched(folder: Path, **readings: float) -> Path:
    samples: list[dict[str, Any]] = [
        {"kind": "sample", "time": 1000.0 + second, "covers_s": 1.0, **readings}
        for second in range(120)
    ]
    lines = [
        {"kind": "monitor", "time": 999.0, "limits": {"device_memory_bytes": 14.5 * GIB}},
        *samples,
    ]
    (folder / "monitor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_without_samples_shows_its_recorded_peak_so_far(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    view = view_of(new_run())
    assert view.sentence == snapshot
    assert view.note == snapshot
    assert {"predicted peak 1.22 GiB", "measured, highest so far", "minutes", "plan"} <= set(
        texts(view)
    )
    assert view.terms[0].name == "Interpreter"


def test_a_gpu_has_what_torch_holds_and_what_all_programs_use_below_its_capacity(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    folder = watched(
        new_run(plan=GPU_PLAN),
        torch_reserved_bytes=10.0 * GIB,
        device_memory_bytes=10.5 * GIB,
        rss_bytes=2.0 * GIB,
    )
    view = view_of(folder)
    assert {
        "measured: held by torch",
        "measured: device, all programs",
        "capacity 14.5 GiB",
    } <= set(texts(view))
    assert "measured: memory of the process" not in texts(view)
    assert view.note == snapshot


def test_a_capacity_far_above_is_told_and_not_drawn(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    plan = GPU_PLAN | {"device": {"kind": "cpu", "memory_bytes": 99 * GIB}}
    view = view_of(watched(new_run(plan=plan), rss_bytes=3.0 * GIB))
    assert view.sentence == snapshot
    assert not any("capacity" in text for text in texts(view))


def test_a_plan_alone_has_terms_and_no_drawing_and_nothing_has_no_section(new_run: MakeRun) -> None:
    view = view_of(new_run(metrics=[]))
    assert view.drawing is None
    assert view.terms
    assert memory_view(read_run(new_run("bare", plan=None, metrics=[]))) is None
