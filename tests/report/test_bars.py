"""Parts of a whole add up to it."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.report.bars import MOST_PARTS, Bar, Bars, Part, parts


def test_parts_have_their_share_and_their_text() -> None:
    found = parts([("Compute", 90.0), ("Evaluation", 9.0), ("Idle", 0.05)], "time_s")
    assert [part.text for part in found] == ["1m 30s", "9.0 s", "50 ms"]
    assert sum(part.share for part in found) == pytest.approx(1)
    assert [part.share_text for part in found] == ["91 %", "9 %", "0.1 %"]


def test_what_is_beyond_those_told_apart_is_one_part() -> None:
    found = parts([(f"part {number}", 1.0) for number in range(MOST_PARTS + 4)], "bytes")
    assert len(found) == MOST_PARTS
    assert (found[-1].name, found[-1].size) == ("Everything else", 5.0)


def test_places_can_be_given_so_that_two_bars_agree() -> None:
    assert [part.place for part in parts([("a", 1.0), ("b", 2.0)], "time_s", [4, 2])] == [4, 2]


def test_nothing_has_no_parts() -> None:
    assert parts([], "bytes") == []
    assert parts([("a", 0.0)], "bytes") == []
    assert Bars("", "", ()).longest == 1.0


def test_bars_share_a_scale_and_name_every_part_once(snapshot: SnapshotAssertion) -> None:
    bars = tuple(
        Bar(name, tuple(parts([("Compute", seconds), ("Idle", 1.0)], "time_s")))
        for name, seconds in (("predicted", 9.0), ("measured", 19.0))
    )
    shown = Bars("time", "Where the time went", bars)
    assert (shown.longest, [bar.size for bar in bars]) == (20.0, [10.0, 20.0])
    assert shown.about == snapshot
    assert shown.key_parts == bars[1].parts
    names = [part.name for part in Bars("", "", bars, has_sizes=False).key_parts]
    assert names == ["Compute", "Idle"]
    alone = Bar("a", (Part("a", 2.0, 1.0, "2", 0),))
    assert Bars("", "", (alone,)).key_parts == (), "a bar of one part has its name"
