"""Reading monitor.jsonl back: all sessions, whatever a crash or another program left in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.hardware.monitored import Monitored, read_monitor

START: dict[str, Any] = {
    "kind": "monitor",
    "time": 100.0,
    "device": {"kind": "cpu", "name": "X"},
    "limits": {"cores": 2},
    "absent": {"power_w": "no"},
}


def sample(time: float, covers_s: float = 1.0, **readings: Any) -> dict[str, Any]:
    return {"kind": "sample", "time": time, "covers_s": covers_s, **readings}


def written(folder: Path, *records: dict[str, Any], tail: str = "") -> Monitored:
    (folder / "monitor.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return read_monitor(folder)


def test_a_run_without_a_monitor_has_no_samples(tmp_path: Path) -> None:
    seen = read_monitor(tmp_path)

    assert (seen.latest, seen.energy_wh, seen.throttled(), seen.mean("power_w"), seen.limits) == (None, None, None, None, {})


def test_samples_of_all_sessions_follow_each_other(tmp_path: Path) -> None:
    again = {**START, "limits": {"cores": 4}}
    seen = written(tmp_path, START, sample(101, rss_bytes=5), {"kind": "monitor_end", "time": 102}, again, sample(200, rss_bytes=7))

    assert seen.series("rss_bytes") == ([101, 200], [5, 7])
    assert (seen.peak("rss_bytes"), seen.covered_s, seen.limits["cores"]) == (7, 2, 4)
    assert [session.is_ended for session in seen.sessions] == [True, False]
    assert seen.sessions[0].absent == {"power_w": "no"}


def test_what_is_torn_or_odd_is_left_out(tmp_path: Path) -> None:
    odd = [sample(101, -3, rss_bytes=1), {"kind": "sample", "rss_bytes": 1}, sample(102, rss_bytes="many", power_w=None, flag=True)]
    seen = written(tmp_path, START, *odd, tail='[1]\nnot json\n{"kind": "sample", "time": 10')

    assert [(each.time, dict(each.readings)) for each in seen.samples] == [(102, {})]


def test_means_weigh_samples_by_the_time_they_cover(tmp_path: Path) -> None:
    seen = written(tmp_path, START, sample(101, 1, power_w=100), sample(104, 3, power_w=20), sample(105, 1))

    assert seen.mean("power_w") == 40


def test_energy_is_the_counters_or_else_power_over_time_and_of_all_sessions_or_none(tmp_path: Path) -> None:
    counted = [START, sample(101, 1, energy_j=3600, power_w=1), sample(102, 1, energy_j=7200, power_w=1)]
    integrated = [START, sample(201, 36, power_w=100)]
    without = [START, sample(301)]

    assert written(tmp_path, *counted).energy_wh == 2
    assert written(tmp_path, *counted, *integrated).energy_wh == 3
    assert written(tmp_path, *counted, *without).energy_wh is None


def test_throttling_is_a_share_of_the_time_in_which_reasons_were_read(tmp_path: Path) -> None:
    reasons = [{"power cap": 1.0}, {"power cap": 1.0, "thermal (software)": 0.5}, {}]
    seen = written(tmp_path, START, *(sample(101 + place, throttled_s=told) for place, told in enumerate(reasons)), sample(104, 9))

    assert seen.throttled() == pytest.approx({"power cap": 2 / 3, "thermal (software)": 0.5 / 3})
    assert written(tmp_path, START, sample(101, throttled_s={})).throttled() == {}
    assert written(tmp_path, START, sample(101)).throttled() is None
