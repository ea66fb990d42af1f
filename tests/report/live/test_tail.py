"""A growing file read in pieces: nothing twice, nothing torn, and a file that was cut back or
replaced is noticed.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from brimful.base.rundir import Journal
from brimful.base.types import JsonDict
from brimful.report.live.tail import Tail


def line(number: int, **more: Any) -> str:
    return json.dumps({"kind": "step", "step": number, **more}) + "\n"


def steps(read: tuple[bool, list[JsonDict]]) -> tuple[bool, list[int]]:
    return read[0], [record["step"] for record in read[1]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_every_record_is_read_once_and_a_torn_one_when_it_is_whole(path: Path) -> None:
    tail = Tail(path)
    assert tail.read() == (False, [])
    path.write_text(line(1) + line(2) + '{"kind": "st')
    assert steps(tail.read()) == (False, [1, 2])
    assert tail.read() == (False, [])
    with path.open("a") as file:
        file.write('ep", "step": 3}\n')
    assert steps(tail.read()) == (False, [3])


def test_a_damaged_line_costs_only_itself(path: Path) -> None:
    path.write_bytes(line(1).encode() + b"\x00\xff\x00\n[1]\n" + line(2).encode())
    assert steps(Tail(path).read()) == (False, [1, 2])


def test_a_resumed_run_that_cut_its_journal_back_is_read_anew(path: Path) -> None:
    tail = Tail(path)
    with Journal(path) as journal:
        for number in range(1, 6):
            journal.append({"step": number, "time": 1.0})
    tail.read()
    keep_bytes = sum(map(len, path.read_bytes().splitlines(keepends=True)[:3]))
    with Journal(path, keep_bytes=keep_bytes) as journal:
        assert steps(tail.read()) == (True, [1, 2, 3])
        journal.append({"step": 4, "time": 9.0})
        assert steps(tail.read()) == (False, [4])


def test_a_journal_that_was_cut_back_and_outgrew_its_old_size_between_two_looks_is_read_anew(
    path: Path,
) -> None:
    tail = Tail(path)
    path.write_text("".join(line(number, time=1.0) for number in range(1, 21)))
    tail.read()
    os.truncate(path, len(line(1, time=1.0)) * 9)
    with path.open("a") as file:
        file.write("".join(line(number, time=2.0) for number in range(10, 31)))
    is_new, told = steps(tail.read())
    assert (is_new, told) == (True, list(range(1, 31)))


def test_a_copy_that_is_replaced_by_a_longer_one_is_read_on(path: Path) -> None:
    tail = Tail(path)
    path.write_text(line(1))
    tail.read()
    aside = path.with_name("aside")
    aside.write_text(line(1) + line(2))
    os.replace(aside, path)
    assert steps(tail.read()) == (False, [2])
    aside.write_text(line(7))
    os.replace(aside, path)
    assert steps(tail.read()) == (True, [7])


def test_a_file_that_is_away_for_a_moment_has_nothing_new(path: Path) -> None:
    tail = Tail(path)
    path.write_text(line(1))
    tail.read()
    path.rename(path.with_name("away"))
    assert tail.read() == (False, [])
    path.with_name("away").rename(path)
    assert tail.read() == (False, [])


def test_what_did_not_change_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(line(1))
    tail = Tail(path)
    tail.read()
    monkeypatch.setattr("builtins.open", lambda *_: pytest.fail("the file was opened"))
    assert tail.read() == (False, [])
    assert tail.changed_at == path.stat().st_mtime
