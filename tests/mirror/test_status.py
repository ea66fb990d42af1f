"""What a run says of its mirror."""

from dataclasses import replace
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from brimful.base.rundir import write_json_atomically
from brimful.mirror.status import STATUS, MirrorStatus, read_status

FRESH = MirrorStatus("/drive/tiny", "ok", 100.0)


def test_a_status_comes_back_from_its_file_and_none_from_no_or_half_a_file(tmp_path: Path) -> None:
    status = replace(FRESH, local_step=6, durable_step=4, durable_time=90.0, bytes_per_s=5e6)
    assert read_status(tmp_path) is None
    write_json_atomically(tmp_path / STATUS, status.to_json())
    assert read_status(tmp_path) == status
    (tmp_path / STATUS).write_text('{"path": "/dri')
    assert read_status(tmp_path) is None
    (tmp_path / STATUS).write_text('{"run_id": "x"}')
    assert read_status(tmp_path) is None


def test_a_status_is_told_in_a_line(snapshot: SnapshotAssertion) -> None:
    behind = replace(FRESH, state="behind", local_step=6, durable_step=4, durable_time=90.0)
    assert FRESH.describe(110.0) == "mirror /drive/tiny: no recovery point is durable yet"
    assert (
        behind.describe(110.0)
        == "mirror /drive/tiny: step 4 is durable, 20.0 s ago; step 6 is here only"
    )
    assert (
        replace(behind, state="failing", error="no space left on device").describe(110.0)
        == snapshot
    )
    assert (
        replace(behind, finished=True).describe(110.0)
        == "mirror /drive/tiny: holds the finished run"
    )
