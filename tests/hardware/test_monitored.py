"""Reading monitor.jsonl back: all sessions, whatever a crash or another program left in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.base.types import JsonDict
from brimful.hardware.monitored import Monitored, read_monitor

START: JsonDict = {
    "kind": "monitor",
    "time": 100.0,
    "device": {"kind": "cpu", "name": "X"},
    "limits": {"cores": 2},
    "absent": {"power_w": "no"},
}


def sample(time: float, covers_s: float = 1.0, **readings: Any) -> JsonDict:
    return {"kind": "sample", "time": time, "covers_s": covers_s, **readings}


def written(folder: Path, *records: JsonDict, tail: str = "") -> Monitored:
    (folder / "monitor.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records) + tail
    )
    return read_monitor(folder)


def test_a_run_without_a_monitor_has_no_samples(tmp_path: Path) -> None:
    seen = read_monitor(tmp_path)

    told = (
        seen.samples,
        seen.energy_wh_over(()),
        seen.throttled(),
        seen.mean("power_w"),
        seen.limits,
    )
    assert told == ((), None, None, None, {})


def test_samples_of_all_sessions_follow_each_other(tmp_path: Path) -> None:
    again = {**START, "limits": {"cores": 4}}
    seen = written(
        tmp_path,
        START,
        sample(101, rss_bytes=5),
        {"kind": "monitor_end", "time": 102},
        again,
        sample(200, rss_bytes=7),
    )

    assert seen.series("rss_bytes") == ([101, 200], [5, 7])
    assert (seen.peak("rss_bytes"), seen.covered_s, seen.limits["cores"]) == (7, 2, 4)
    assert [session.is_ended for session in seen.sessions] == [True, False]
    assert seen.sessions[0].absent == {"power_w": "no"}


def test_what_is_torn_or_odd_is_left_out(tmp_path: Path) -> None:
    odd = [
        sample(101, -3, rss_bytes=1),
        {"kind": "sample", "rss_bytes": 1},
        sample(102, rss_bytes="many", power_w=None, flag=True),
    ]
    seen = written(tmp_path, START, *odd, tail='[1]\nnot json\n{"kind": "sample", "time": 10')

    assert [(each.time, dict(each.readings)) for each in seen.samples] == [(102, {})]


def test_an_integer_that_no_float_holds_is_left_out(tmp_path: Path) -> None:
    seen = written(
        tmp_path,
        {**START, "limits": {"cores": 10**400}},
        sample(101, rss_bytes=10**400, power_w=5),
        sample(10**400),
        sample(102, 10**400),
    )

    assert [dict(each.readings) for each in seen.samples] == [{"power_w": 5}]
    assert seen.limits == {}


def test_means_weigh_samples_by_the_time_they_cover(tmp_path: Path) -> None:
    seen = written(
        tmp_path, START, sample(101, 1, power_w=100), sample(104, 3, power_w=20), sample(105, 1)
    )

    assert seen.mean("power_w") == 40


def test_energy_is_the_counters_or_else_power_over_time_and_of_all_sessions_or_none(
    tmp_path: Path,
) -> None:
    counted = [
        START,
        sample(101, 1, energy_j=3600, power_w=1),
        sample(102, 1, energy_j=7200, power_w=1),
    ]
    integrated = [START, sample(201, 36, power_w=100)]
    without = [START, sample(301)]

    assert written(tmp_path, *counted).energy_wh_over(()) == 2
    assert written(tmp_path, *counted, *integrated).energy_wh_over(()) == 3
    assert written(tmp_path, *counted, *without).energy_wh_over(()) is None


@pytest.mark.parametrize("readings", [{"power_w": 300.0}, {"energy_j": 3600.0, "power_w": 300.0}])
def test_energy_of_a_part_is_not_energy_of_the_session(
    tmp_path: Path, readings: dict[str, float]
) -> None:
    def watched(*covers_s: float, end: list[JsonDict] | None = None) -> Monitored:
        samples = [
            sample(100 + place, seconds, **(readings if seconds > 0 else {}))
            for place, seconds in enumerate(covers_s)
        ]
        return written(tmp_path, START, *samples, *(end or []))

    silent = sample(900, 50)
    lost = [
        {
            "kind": "sensor_lost",
            "time": 900,
            "sensor": "energy_j" if "energy_j" in readings else "power_w",
            "reason": "gone",
        }
    ]

    assert watched(36, 950).energy_wh_over(()) is not None
    assert watched(36, 950, end=[silent]).energy_wh_over(()) is not None, (
        "less than a twentieth is not known"
    )
    assert watched(36, 864, end=[silent]).energy_wh_over(()) is None
    assert watched(36, 950, end=lost).energy_wh_over(()) is None
    assert watched(36, 950, end=[{**lost[0], "sensor": "process"}]).energy_wh_over(()) is not None
    assert watched(36, 950, end=[{**lost[0], "sensor": "energy"}]).energy_wh_over(()) is None


def test_a_counter_goes_on_where_single_looks_at_it_fail(tmp_path: Path) -> None:
    samples = [sample(100, 0, energy_j=0), sample(150, 50), sample(200, 50, energy_j=7200)]

    assert written(tmp_path, START, *samples).energy_wh_over(()) == 2


def test_what_the_runs_journal_tells_of_must_have_been_watched(tmp_path: Path) -> None:
    """Two sessions of 50 s at 72 W, which begin at 100 s and 200 s."""
    seen = written(tmp_path, START, sample(150, 50, power_w=72), START, sample(250, 50, power_w=72))

    assert seen.energy_wh_over([(110.0, 48.0), (210.0, 51.0)]) == pytest.approx(2)
    assert seen.energy_wh_over([(210.0, 51.0)]) == pytest.approx(2), (
        "the first was killed before its first checkpoint"
    )
    assert seen.energy_wh_over([(None, 48.0), (None, 51.0)]) == pytest.approx(2)
    for unwatched in (
        [(110.0, 1000.0), (210.0, 51.0)],
        [(110.0, 48.0), (210.0, 60.0)],
        [(None, 60.0), (None, 51.0)],
    ):
        assert seen.energy_wh_over(unwatched) is None
    assert seen.energy_wh_over([(50.0, 48.0), (210.0, 51.0)]) is None, "nobody watched at 50 s"
    assert seen.energy_wh_over([(110.0, 48.0), (160.0, 40.0), (210.0, 51.0)]) is None, (
        "one that was watched, then one that was not"
    )
    assert seen.energy_wh_over([(None, 1.0)] * 3) is None


def test_throttling_is_a_share_of_the_time_in_which_reasons_were_read(tmp_path: Path) -> None:
    reasons = [{"power cap": 1.0}, {"power cap": 1.0, "thermal (software)": 0.5}, {}]
    seen = written(
        tmp_path,
        START,
        *(sample(101 + place, throttled_s=told) for place, told in enumerate(reasons)),
        sample(104, 9),
    )

    assert seen.throttled() == pytest.approx({"power cap": 2 / 3, "thermal (software)": 0.5 / 3})
    assert written(tmp_path, START, sample(101, throttled_s={})).throttled() == {}
    assert written(tmp_path, START, sample(101)).throttled() is None
