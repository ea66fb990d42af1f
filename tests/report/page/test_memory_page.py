"""Memory over time is drawn from what was sampled, else from what every step recorded, with the
plan's peak on the same scale.
"""

import json
from pathlib import Path

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.base.units import GIB
from brimful.report.bars import Bars
from brimful.report.chart import Chart
from brimful.report.page.memory_page import memory_chart_of, memory_section
from brimful.report.views import Paragraph
from brimful.runs.folder import read_run

GPU_PLAN = {
    "device": {"kind": "cuda", "name": "T4", "memory_bytes": 15 * GIB},
    "predicted": {"peak_memory_bytes": 11.0 * GIB},
    "memory_terms": {"weights": 6 * GIB, "activations": 5 * GIB},
}


def told_of(folder: Path) -> list[str]:
    """The sentences of the section."""
    section = memory_section(read_run(folder))
    assert section is not None
    return [each.text for each in section.blocks if isinstance(each, Paragraph)]


def chart_of(folder: Path) -> Chart:
    chart = memory_chart_of(read_run(folder))
    assert chart is not None
    return chart


def watched(folder: Path, **readings: float) -> Path:
    samples: list[JsonDict] = [
        {"kind": "sample", "time": 1000.0 + second, "covers_s": 1.0, **readings}
        for second in range(120)
    ]
    lines = [
        {"kind": "monitor", "time": 999.0, "limits": {"device_memory_bytes": 14.5 * GIB}},
        *samples,
    ]
    (folder / "monitor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


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
    chart = chart_of(folder)
    assert [(each.name, max(filter(None, each.y))) for each in chart.series] == [
        ("measured: held by torch", 10.0),
        ("measured: device, all programs", 10.5),
    ]
    assert chart.levels[-1].name == "capacity 14.5 GiB"
    assert told_of(folder)[-1] == snapshot


def test_a_capacity_far_above_is_told_and_not_drawn(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    plan = GPU_PLAN | {"device": {"kind": "cpu", "memory_bytes": 99 * GIB}}
    folder = watched(new_run(plan=plan), rss_bytes=3.0 * GIB)
    assert told_of(folder)[0] == snapshot
    assert [level.name for level in chart_of(folder).levels] == ["predicted peak 11.0 GiB"]


def test_a_plan_alone_has_its_parts_and_no_chart_and_nothing_has_no_section(
    new_run: MakeRun,
) -> None:
    run = read_run(new_run(metrics=[]))
    section = memory_section(run)
    assert memory_chart_of(run) is None
    assert section is not None
    assert isinstance(section.blocks[-1], Bars)
    assert memory_section(read_run(new_run("bare", plan=None, metrics=[]))) is None
