"""The monitor beside a run: what it writes, what it costs, and that nothing of it reaches the
run.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from json_lines import write_rows
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.hardware import monitor
from brimful.hardware.device import Device
from brimful.hardware.monitor import Monitor, interval_s
from brimful.hardware.monitored import Monitored, read_monitor, thinned
from brimful.hardware.probe import cpu_device, probe
from brimful.hardware.sensors import Reader, Sensors


def records(folder: Path) -> list[JsonDict]:
    return [json.loads(line) for line in (folder / "monitor.jsonl").read_text().splitlines()]


def watched(
    folder: Path,
    readers: dict[str, Reader],
    until: int,
    say: Callable[[str], None] = lambda message: None,
) -> Monitored:
    """What a monitor with these readers writes in `until` samples and the last one."""
    enough, seen = threading.Event(), 0

    def count(_: float) -> JsonDict:
        nonlocal seen
        seen += 1
        if seen >= until:
            enough.set()
        return {}

    def look(device: Device, run_folder: Path) -> Sensors:
        return Sensors(
            readers={**readers, "count": count}, device={"name": device.name}, limits={"cores": 2.0}
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "interval_s", lambda *_: 0.001)
        with Monitor(folder, cpu_device(), look=look, say=say):
            assert enough.wait(20)
    return read_monitor(folder)


def test_a_run_on_this_machine_is_sampled_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    with Monitor(tmp_path, cpu_device()):
        pass
    told = records(tmp_path)

    assert [record["kind"] for record in told] in (
        ["monitor", "sample", "monitor_end"],
        ["monitor", "sample", "sample", "monitor_end"],
    )
    seen = read_monitor(tmp_path)
    assert seen.samples[-1].readings["rss_bytes"] > 10 << 20
    assert seen.sessions[0].device["kind"] == "cpu"
    assert 0 < told[-1]["sampling_cpu_s"] <= told[-1]["process_cpu_s"] + 0.05


def test_a_second_session_is_appended_and_a_torn_line_dropped(tmp_path: Path) -> None:
    watched(tmp_path, {"a": lambda _: {"power_w": 5.0}}, 2)
    with open(tmp_path / "monitor.jsonl", "a") as file:
        file.write('{"kind": "sample", "ti')
    seen = watched(tmp_path, {"a": lambda _: {"power_w": 7.0}}, 2)

    assert [session.is_ended for session in seen.sessions] == [True, True]
    assert set(seen.series("power_w")[1]) == {5.0, 7.0}


def test_a_sensor_that_fails_is_absent_then_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    asked = []

    def broken(_: float) -> JsonDict:
        asked.append(1)
        raise OSError("the GPU fell off the bus")

    said: list[str] = []
    seen = watched(
        tmp_path, {"power": broken, "memory": lambda _: {"rss_bytes": 5}}, 6, said.append
    )

    assert len(asked) == monitor.FAILURES_BEFORE_DROP
    assert seen.sessions[0].absent == {"power": "OSError: the GPU fell off the bus"}
    assert len(seen.series("rss_bytes")[1]) >= 6
    assert seen.peak("power_w") is None
    assert said == []


def test_reasons_of_throttling_hold_for_the_time_that_the_sample_covers(tmp_path: Path) -> None:
    seen = watched(tmp_path, {"throttled_s": lambda _: {"throttle_reasons": ("power cap",)}}, 3)

    assert seen.throttled() == {"power cap": pytest.approx(1.0)}
    assert "throttle_reasons" not in records(tmp_path)[1]


def test_a_file_that_cannot_be_written_ends_the_monitor_and_not_the_run(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said: list[str] = []
    with Monitor(tmp_path / "missing", cpu_device(), say=said.append):
        pass

    assert len(said) == 1
    assert said[0] == snapshot


def test_a_sensor_that_hangs_holds_the_run_up_no_longer_than_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(monitor, "PATIENCE_S", 0.05)
    forever, said = threading.Event(), list[str]()

    def hang(_: float) -> JsonDict:
        forever.wait(20)
        return {}

    def look(device: Device, folder: Path) -> Sensors:
        return Sensors(readers={"hangs": hang})

    opened = Monitor(tmp_path, cpu_device(), look=look, say=said.append)
    with opened:
        pass
    forever.set()
    opened._thread.join(20)

    assert len(said) == 1
    assert said[0] == snapshot


@pytest.mark.parametrize(
    ("cost_s", "cores", "expected_s"),
    [
        (0.0, 1, 1.0),
        (0.0005, 1, 1.0),
        (0.004, 1, 4.0),
        (0.004, 16, 4.0),
        (0.001, 0.25, 2.0),
        (5.0, 1, 30.0),
        (0.001, 0.0, 30.0),
    ],
)
def test_the_interval_keeps_a_samples_cost_to_a_thousandth_and_to_little_of_what_the_process_gets(
    cost_s: float, cores: float, expected_s: float
) -> None:
    assert interval_s(cost_s, cores) == pytest.approx(expected_s)


def a_day(num_samples: int, covers_s: float = 1.0) -> list[JsonDict]:
    values = [
        {
            "power_w": float(place % 7),
            "energy_j": float(place),
            "rss_bytes": place % 11,
            "disk_free_bytes": 100 - place % 13,
        }
        for place in range(num_samples)
    ]
    return [
        {
            "kind": "sample",
            "time": 100.0 + place,
            "covers_s": covers_s,
            **each,
            "throttled_s": {"power cap": 0.25},
        }
        for place, each in enumerate(values)
    ]


def test_thinning_keeps_peaks_means_energy_and_throttling(tmp_path: Path) -> None:
    start = {"kind": "monitor", "time": 99.0}
    before = [start, *a_day(1001)]
    after, resolution_s = thinned(before, 400)

    def seen(told: list[JsonDict]) -> list[Any]:
        write_rows(tmp_path / "monitor.jsonl", told)
        found = read_monitor(tmp_path)
        throttled = (found.throttled() or {})["power cap"]
        return [
            found.mean("power_w"),
            found.energy_wh_over(()),
            throttled,
            found.peak("rss_bytes"),
            min(found.series("disk_free_bytes")[1]),
            found.covered_s,
        ]

    assert 100 <= len(after) <= 202
    assert resolution_s == pytest.approx(10.01)
    assert seen(after) == pytest.approx(seen(before))


def test_the_file_stays_small_and_the_interval_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "MOST_SAMPLES", 40)
    write_rows(tmp_path / "monitor.jsonl", [{"kind": "monitor", "time": 1.0}, *a_day(60)])
    log = monitor._SampleFile(tmp_path / "monitor.jsonl")
    log.keep_small()
    log.append({"kind": "sample", "time": 999.0, "covers_s": 6.0})
    log._journal.close()

    assert len(records(tmp_path)) <= 25
    assert log.shortest_s == 3.0
    assert records(tmp_path)[-1]["time"] == 999.0


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_sampled_with_what_the_driver_and_torch_say(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = probe("cuda")
    held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    with Monitor(tmp_path, device):
        _ = held.sum().item()
    seen = read_monitor(tmp_path)

    assert seen.samples[-1].readings["torch_allocated_bytes"] >= held.nbytes
    assert (
        seen.samples[-1].readings["device_memory_bytes"]
        >= seen.samples[-1].readings["torch_reserved_bytes"]
    )
    assert seen.limits["device_memory_bytes"] >= device.memory_bytes
    assert (
        seen.sessions[0]
        .device["uuid"]
        .endswith(str(torch.cuda.get_device_properties(device.index or 0).uuid))
    )
