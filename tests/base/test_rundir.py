"""Files and folders that survive a crash: atomic writes, one writer, journals without torn
lines.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import Refuses

from brimful.base import rundir
from brimful.base.errors import RunFolderError
from brimful.base.rundir import (
    Journal,
    Lease,
    finite,
    is_torn,
    num_records,
    read_journal,
    read_json,
    records_lost,
    require_writable,
    write_json_atomically,
    write_text_atomically,
    writer_of,
)
from brimful.base.types import JsonDict


@pytest.mark.parametrize("text", ["[1]", "null", '"text"', "3.5"])
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RunFolderError, match=r"run\.json cannot be read as JSON: it is no object"):
        read_json(path)


HOLD = """
import sys, time
from pathlib import Path
from brimful.base.rundir import Lease
lease = Lease.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another living process that holds the lease of `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _forge(folder: Path, age_s: float = 0, **changes: Any) -> Path:
    """A lease of this process as if it had been taken earlier, with some fields changed."""
    with Lease.acquire(folder) as lease:
        path = folder / lease.FILE_NAME
        fields = json.loads(path.read_text()) | {"token": "of somebody else"} | changes
    path.write_text(json.dumps(fields))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


# --- atomic writes


def test_a_written_text_reads_back_with_its_line_ends(tmp_path: Path) -> None:
    write_text_atomically(tmp_path / "a.txt", "ä\nb\n")

    assert (tmp_path / "a.txt").read_bytes() == "ä\nb\n".encode()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with refuses(RunFolderError):
        write_text_atomically(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_durable_before_it_gets_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor))[1]
    )
    monkeypatch.setattr(
        os, "replace", lambda source, target: (calls.append("rename"), replace(source, target))[1]
    )

    write_text_atomically(tmp_path / "a.txt", "x")

    assert calls == ["fsync", "rename", "fsync"]


def test_json_reads_back_and_holds_no_nan(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "a.json"
    write_json_atomically(path, {"a": [1, None]})

    assert read_json(path) == {"a": [1, None]}
    with refuses(ValueError):
        write_json_atomically(path, {"a": math.nan})
    assert read_json(path) == {"a": [1, None]}


@pytest.mark.parametrize("content", [None, b"", b'{"a": ', b"\xff\xfe"])
def test_json_that_cannot_be_read_is_told_with_its_path(
    tmp_path: Path, content: bytes | None, refuses: Refuses
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)

    with refuses(RunFolderError):
        read_json(path)


# --- the lease


def test_a_held_folder_is_refused_to_others_who_are_told_who_holds_it(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(
        RunFolderError,
        match=(
            rf"written by process {holder.pid} on {socket.gethostname()} since"
            r" \d{4}.*run\.name=NAME"
        ),
    ):
        Lease.acquire(tmp_path)
    assert json.loads((tmp_path / Lease.FILE_NAME).read_text())["pid"] == holder.pid


def test_a_killed_holder_is_replaced_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()

    with Lease.acquire(tmp_path) as lease:
        lease.check()
        assert json.loads((tmp_path / Lease.FILE_NAME).read_text())["pid"] == os.getpid()


def test_a_killed_holder_whose_parent_has_not_noticed_is_replaced_too(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped

    with Lease.acquire(tmp_path):
        assert (tmp_path / Lease.FILE_NAME).exists()


def test_leaving_frees_the_folder(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path):
        assert (tmp_path / Lease.FILE_NAME).exists()

    assert list(tmp_path.iterdir()) == []
    Lease.acquire(tmp_path).release()


def test_the_same_process_does_not_get_a_second_lease(tmp_path: Path, refuses: Refuses) -> None:
    with Lease.acquire(tmp_path), refuses(RunFolderError):
        Lease.acquire(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"boot_id": "an earlier boot"}, id="machine started anew"),
        pytest.param({"process_started": 1.0}, id="process id used again"),
        pytest.param({"pid": 2**22 + 1}, id="no such process"),
    ],
)
def test_a_holder_of_this_machine_that_is_provably_gone_is_replaced(
    tmp_path: Path, changes: JsonDict
) -> None:
    _forge(tmp_path, **changes)

    with Lease.acquire(tmp_path) as lease:
        lease.check()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_on_another_machine_is_respected_while_its_heart_beats(
    tmp_path: Path, refuses: Refuses
) -> None:
    _forge(tmp_path, host="elsewhere", age_s=rundir.LEASE_STALE_AFTER_S - 60)

    with refuses(RunFolderError):
        Lease.acquire(tmp_path)


def test_a_holder_on_another_machine_without_heartbeat_is_replaced(tmp_path: Path) -> None:
    _forge(tmp_path, host="elsewhere", age_s=rundir.LEASE_STALE_AFTER_S + 60)

    with Lease.acquire(tmp_path) as lease:
        lease.check()


@pytest.mark.parametrize(
    "content", ["", '{"host": ', "[]", "null", '{"host": "HOST", "pid": null, "boot_id": "BOOT"}']
)
def test_an_old_lease_that_cannot_be_read_is_replaced(tmp_path: Path, content: str) -> None:
    path = _forge(tmp_path)
    boot_id = json.loads(path.read_text())["boot_id"]
    path.write_text(content.replace("HOST", socket.gethostname()).replace("BOOT", boot_id))
    os.utime(path, (time.time() - 60,) * 2)

    with Lease.acquire(tmp_path) as lease:
        lease.check()


def test_a_lease_whose_writer_was_killed_before_it_wrote_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / Lease.FILE_NAME
    path.write_text("")
    monkeypatch.setattr(time, "sleep", lambda _seconds: os.utime(path, (0, time.time() - 20)))

    with Lease.acquire(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_lease_that_is_being_written_all_the_time_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    path, clock = tmp_path / Lease.FILE_NAME, [0.0]
    path.write_text("")

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        path.touch()

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    with refuses(RunFolderError):
        Lease.acquire(tmp_path)
    assert path.read_text() == ""


def test_who_holds_a_folder_can_be_asked_without_taking_it(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    found = writer_of(tmp_path)

    assert found is not None
    assert (found.pid, found.is_here) == (holder.pid, True)
    holder.kill()
    holder.wait()
    assert writer_of(tmp_path) is None


def test_a_folder_that_nobody_holds_or_that_is_none_has_no_writer(tmp_path: Path) -> None:
    assert writer_of(tmp_path) is None
    assert writer_of(tmp_path / "absent") is None
    (tmp_path / Lease.FILE_NAME).write_text("")
    assert writer_of(tmp_path) is None


def test_who_lost_the_folder_neither_writes_nor_frees_it(tmp_path: Path, refuses: Refuses) -> None:
    lease = Lease.acquire(tmp_path)
    (tmp_path / Lease.FILE_NAME).unlink()
    with Lease.acquire(tmp_path) as other:
        for refused in (lease.check, lease.renew):
            with refuses(RunFolderError):
                refused()
        lease.release()

        other.check()


def test_a_lost_lock_file_counts_as_lost(tmp_path: Path, refuses: Refuses) -> None:
    lease = Lease.acquire(tmp_path)
    (tmp_path / Lease.FILE_NAME).unlink()

    with refuses(RunFolderError):
        lease.check()


def test_renewing_is_the_heartbeat(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path) as lease:
        path = tmp_path / Lease.FILE_NAME
        os.utime(path, (0, 0))

        lease.renew()

        assert time.time() - path.stat().st_mtime < 60


def test_of_several_processes_that_start_together_one_gets_the_folder(tmp_path: Path) -> None:
    _forge(tmp_path, pid=2**22 + 1)
    ask = HOLD.replace("time.sleep(600)", "sys.stdin.read()")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ask, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(3)
    ]
    lines = [process.stdout.readline() for process in processes]  # type: ignore[union-attr]
    owner = json.loads((tmp_path / Lease.FILE_NAME).read_text())["pid"]
    for process in processes:
        process.communicate("")

    assert "held\n" in lines
    assert owner in [process.pid for process, line in zip(processes, lines, strict=True) if line]


# --- the journal


def test_records_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    records = [{"kind": "step", "step": number, "message": "ä\u2028"} for number in range(3)]
    for record in records:
        journal.append(record)
    journal.sync()
    journal.close()

    assert list(read_journal(tmp_path / "m.jsonl")) == records
    assert len((tmp_path / "m.jsonl").read_bytes().splitlines()) == 3


def test_an_absent_journal_has_no_records(tmp_path: Path) -> None:
    assert list(read_journal(tmp_path / "m.jsonl")) == []


def test_a_record_is_on_file_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    journal.append({"step": 1})

    assert list(read_journal(tmp_path / "m.jsonl")) == [{"step": 1}]
    journal.close()


def test_opening_again_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    for step in (1, 2):
        journal = Journal(tmp_path / "m.jsonl")
        journal.append({"step": step})
        assert journal.num_bytes == (tmp_path / "m.jsonl").stat().st_size
        journal.close()

    assert [record["step"] for record in read_journal(tmp_path / "m.jsonl")] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step": 3}', b"\xc3"])
def test_a_line_torn_by_a_crash_is_no_record_and_is_dropped_on_opening(
    tmp_path: Path, torn: bytes
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)

    assert [record["step"] for record in read_journal(path)] == [1, 2]
    Journal(path).close()

    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_journal_of_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"st')

    Journal(path).close()

    assert path.read_bytes() == b""


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\x00\n\xff\n[1]\n{"step": 2}\n')
    Journal(path).close()

    assert [record["step"] for record in read_journal(path)] == [1, 2]


def test_a_resumed_run_keeps_what_its_checkpoint_supposes_and_no_more(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    journal.append({"step": 1})
    at_checkpoint = journal.num_bytes
    journal.append({"step": 2})
    journal.close()

    resumed = Journal(tmp_path / "m.jsonl", keep_bytes=at_checkpoint)
    resumed.append({"step": 2, "again": True})
    resumed.close()

    assert list(read_journal(tmp_path / "m.jsonl")) == [{"step": 1}, {"step": 2, "again": True}]


def test_a_number_that_json_cannot_hold_keeps_its_true_value(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    journal.append(
        {"step": 1, "loss": math.nan, "grad_norm": math.inf, "low": -math.inf, "fine": 0.5}
    )
    journal.close()

    (record,) = read_journal(tmp_path / "m.jsonl")
    assert record == {
        "step": 1,
        "loss": None,
        "grad_norm": None,
        "low": None,
        "fine": 0.5,
        "nonfinite": {"loss": "nan", "grad_norm": "inf", "low": "-inf"},
    }


def test_appending_leaves_the_record_of_the_caller_alone(tmp_path: Path) -> None:
    journal, record = Journal(tmp_path / "m.jsonl"), {"loss": math.inf}
    journal.append(record)
    journal.close()

    assert record == {"loss": math.inf}


def test_the_lease_names_a_process_that_lives(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path):
        holder = json.loads((tmp_path / Lease.FILE_NAME).read_text())

    assert abs(psutil.Process(holder["pid"]).create_time() - holder["process_started"]) < 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_journal_on_a_full_disk_says_so(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    journal = Journal.__new__(Journal)
    journal.path, journal._num_records = tmp_path / "metrics.jsonl", 0
    journal._file = open(journal.path, "ab", buffering=0)  # noqa: SIM115 - closed by the journal
    with (
        refuses(RunFolderError),
        journal,
    ):
        journal.append({"step": 1})


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (-0.5, -0.5),
        (10**300, 1e300),
        (10**400, None),
        (-(10**400), None),
        (math.nan, None),
        (math.inf, None),
        (True, None),
        ("3", None),
        (None, None),
    ],
)
def test_a_number_of_a_file_is_what_a_float_holds(value: object, number: float | None) -> None:
    assert finite(value) == number


def test_a_folder_that_cannot_be_written_is_told_before_work_is_wasted(
    tmp_path: Path, permissions_hold: None, refuses: Refuses
) -> None:
    require_writable(tmp_path)
    tmp_path.chmod(0o500)
    with refuses(RunFolderError, names=[str(tmp_path), "copy"]):
        require_writable(tmp_path)
    tmp_path.chmod(0o700)


def journal_of(path: Path, count: int) -> list[JsonDict]:
    records = [{"kind": "step", "step": number, "loss": 1 / number} for number in range(1, count)]
    with Journal(path) as journal:
        for record in records:
            journal.append(record)
    return records


def test_no_wrong_bit_in_a_journal_becomes_a_number(tmp_path: Path) -> None:
    """Every single one: the record is left out and counted, or it is the one that was written."""
    path = tmp_path / "m.jsonl"
    records = journal_of(path, 4)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytes([whole[place] ^ 1 << bit])
            path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
            read = list(read_journal(path))
            assert [record for record in read if record not in records] == [], (place, bit)
            assert read == records or records_lost(path) or is_torn(path), (place, bit)


def test_a_zeroed_page_of_a_journal_is_counted_in_records(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    records = journal_of(path, 60)
    content = bytearray(path.read_bytes())
    content[1000:2000] = bytes(1000)
    path.write_bytes(content)
    left = list(read_journal(path))
    assert records_lost(path) == len(records) - len(left) > 9
    with Journal(path) as journal:
        journal.append({"kind": "step", "step": 60})
    assert records_lost(path) == len(records) - len(left)


def test_a_journal_of_the_version_before_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert records_lost(path) == 0
    with Journal(path) as journal:
        journal.append({"step": 3})
        journal.append({})
    assert list(read_journal(path)) == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert records_lost(path) == 0
    path.write_bytes(path.read_bytes().replace(b'{"step": 2}', b'{"step: 2}'))
    assert records_lost(path) == 1


def test_a_journal_that_is_cut_back_counts_on_from_there(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    journal_of(path, 9)
    at = path.read_bytes().index(b"\n") + 1
    with Journal(path, keep_bytes=at) as journal:
        journal.append({"step": 2})
    assert records_lost(path) == 0
    assert [record["step"] for record in read_journal(path)] == [1, 2]


@pytest.mark.parametrize("tail_bytes", [10, 150, 1 << 16])
def test_records_are_counted_from_the_end_of_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail_bytes: int
) -> None:
    """Also where a record is longer than what is read first, or the last one is damaged."""
    monkeypatch.setattr(rundir, "_TAIL_BYTES", tail_bytes)
    path = tmp_path / "metrics.jsonl"
    with Journal(path) as journal:
        for step in range(5):
            journal.append({"step": step, "text": "x" * 20})
    assert num_records(path) == 5
    path.write_bytes(path.read_bytes()[:-5] + b"9999\n")
    assert num_records(path) == 5


def test_a_journal_cut_inside_a_line_goes_on_with_a_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\x00\x01 no record\nmore of another file\n")
    with Journal(path, keep_bytes=20) as journal:
        journal.append({"kind": "start"})
    assert list(read_journal(path)) == [{"kind": "start"}]


def test_a_changed_letter_anywhere_in_a_file_with_a_checksum_is_found(tmp_path: Path) -> None:
    """Also in the name of the entry that holds the checksum."""
    path = tmp_path / "facts.json"
    write_json_atomically(path, {"loss": 1.5, "words": ["a"]}, with_checksum=True)
    sound = path.read_text()
    for place in (each for each, letter in enumerate(sound) if letter.isalnum()):
        path.write_text(f"{sound[:place]}{'x' if sound[place] != 'x' else 'y'}{sound[place + 1 :]}")
        with pytest.raises(RunFolderError):
            read_json(path)


def test_checksums_of_the_version_before_knew_no_name_and_are_read(tmp_path: Path) -> None:
    """Literally as that version wrote them; one other digit is damage all the same."""
    status, journal = tmp_path / "run.json", tmp_path / "metrics.jsonl"
    text = '{"status": "finished", "n": [1, 2], "checksum": "ef050f4e60450a1f"}'
    line = '{"kind": "step", "loss": 1.5, "check": "1-61271308"}\n'
    status.write_text(text)
    journal.write_text(line)

    assert read_json(status) == {"status": "finished", "n": [1, 2]}
    assert list(read_journal(journal)) == [{"kind": "step", "loss": 1.5}]
    assert records_lost(journal) == 0

    status.write_text(text.replace("2]", "3]"))
    journal.write_text(line.replace("1.5", "1.6"))
    with pytest.raises(RunFolderError):
        read_json(status)
    assert list(read_journal(journal)) == []
    assert records_lost(journal) == 1
