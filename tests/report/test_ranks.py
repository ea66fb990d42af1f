"""The ranks of a run, as a line tells them."""

from syrupy.assertion import SnapshotAssertion

from brimful.report.ranks import ranks_text
from brimful.runs.records import RanksRecord, read_record


def test_the_slowest_rank_the_share_of_communication_and_the_fullest_rank_are_named(
    snapshot: SnapshotAssertion,
) -> None:
    record = read_record(
        {
            "kind": "ranks",
            "step": 9,
            "ranks": [
                {"rank": 0, "computing_s": 1.0, "communication_s": 1.0, "memory_bytes": 3 << 30},
                {"rank": 1, "computing_s": 2.0, "communication_s": 0.0, "memory_bytes": 2 << 30},
            ],
        }
    )

    assert isinstance(record, RanksRecord)
    assert ranks_text(record) == snapshot
