"""Samples in a mirror: brought back whole or by their sound beginning, never waited for while they
are drawn, never a lie at the end.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Journal
from brimful.mirror.files import Files
from brimful.mirror.folder import make_mirror, mirrored_folder

JOURNAL = "drawn.jsonl"


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "chain" / "samples-1"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"


def _draw(folder: Path, first: int, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with Journal(folder / JOURNAL) as journal:
        for number in range(first, first + count):
            journal.append({"sample": number})


def _samples(folder: Path) -> list[Any]:
    return [json.loads(line)["sample"] for line in (folder / JOURNAL).read_text().splitlines()]


def _lose(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_what_was_drawn_on_a_machine_that_is_gone_is_there_on_the_next(
    drawn: Path, mirror: Path, snapshot: SnapshotAssertion
) -> None:
    said: list[str] = []
    with mirrored_folder(str(mirror), drawn, JOURNAL, said.append):
        _draw(drawn, 0, 5)
    _lose(drawn)

    with mirrored_folder(str(mirror), drawn, JOURNAL, said.append):
        assert _samples(drawn) == [0, 1, 2, 3, 4]
        _draw(drawn, 5, 2)
    _lose(drawn)
    with mirrored_folder(str(mirror), drawn, JOURNAL, said.append):
        assert _samples(drawn) == list(range(7))

    assert said[0] == snapshot
    assert said[1].startswith(f"brought back from the mirror {mirror / 'samples-1'}: 1 file (")


def test_it_is_copied_while_it_is_drawn(drawn: Path, mirror: Path) -> None:
    files = Files()
    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None, files=files, every_s=0.01):
        _draw(drawn, 0, 3)
        while not (mirror / "samples-1" / "finished.json").exists():
            time.sleep(0.005)
        assert set(_samples(mirror / "samples-1")) <= {0, 1, 2}


def test_what_is_here_and_longer_stays(drawn: Path, mirror: Path) -> None:
    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        _draw(drawn, 0, 3)
    _draw(drawn, 3, 3)

    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        assert _samples(drawn) == list(range(6))


def test_a_journal_that_grew_after_it_was_listed_is_known_by_its_beginning(
    drawn: Path, mirror: Path
) -> None:
    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        _draw(drawn, 0, 3)
    _draw(mirror / "samples-1", 3, 2)  # copied, and then the machine was gone before it was listed
    _lose(drawn)

    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        assert _samples(drawn) == list(range(5))


@pytest.mark.parametrize("damage", ["flipped", "shortened"])
def test_a_damaged_copy_is_not_brought_back(drawn: Path, mirror: Path, damage: str) -> None:
    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        _draw(drawn, 0, 3)
    copy = mirror / "samples-1" / JOURNAL
    content = bytearray(copy.read_bytes())
    content[5] ^= 1
    copy.write_bytes(content if damage == "flipped" else content[:-4])
    _lose(drawn)

    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        assert not drawn.exists()


class _Full(Files):
    def write(self, descriptor: int, data: bytes) -> None:
        if len(data) != 4096:  # what is written to try the mirror at the start
            raise OSError(28, "No space left on device")
        super().write(descriptor, data)


def test_a_full_mirror_stops_nothing_and_is_said_at_the_end(
    drawn: Path, mirror: Path, snapshot: SnapshotAssertion
) -> None:
    said: list[str] = []
    with mirrored_folder(str(mirror), drawn, JOURNAL, said.append, files=_Full()):
        _draw(drawn, 0, 3)

    assert len(said) == 1
    assert said[0] == snapshot
    assert f"Keep {drawn}" in said[0]


def test_without_a_mirror_nothing_is_copied(drawn: Path) -> None:
    with mirrored_folder(None, drawn, JOURNAL, pytest.fail):
        _draw(drawn, 0, 1)


def test_a_mirror_is_made_or_refused_before_anything_is_computed(
    drawn: Path, mirror: Path, refuses: Refuses
) -> None:
    make_mirror(str(mirror / "runs"), drawn.parent)
    assert (mirror / "runs" / "chain").is_dir()
    with refuses(RunFolderError):
        make_mirror(str(mirror / "not" / "there"), drawn.parent)


def _draw_others(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    (folder / JOURNAL).write_text('{"decides": "another model"}\n' * count)


@pytest.mark.parametrize("count", [1, 9])
def test_samples_of_another_kind_replace_nothing_here_or_there(
    drawn: Path, mirror: Path, count: int, refuses: Refuses
) -> None:
    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        _draw(drawn, 0, 3)
    _lose(drawn)
    _draw_others(drawn, count)

    with (
        refuses(RunFolderError),
        mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None),
    ):
        pytest.fail("nothing is drawn")
    assert (drawn / JOURNAL).read_text().count("another model") == count
    assert _samples(mirror / "samples-1") == [0, 1, 2]


def test_who_refuses_what_was_brought_back_is_told_where_it_came_from(
    drawn: Path, mirror: Path
) -> None:
    with mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None):
        _draw(drawn, 0, 3)
    _lose(drawn)

    told = (
        f"Other samples. They were brought back from the mirror {mirror / 'samples-1'}: move that"
        " away, too"
    )
    with (
        pytest.raises(RunFolderError, match=told),
        mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None),
    ):
        raise RunFolderError("Other samples.")


def test_a_mirror_that_cannot_be_read_is_told(drawn: Path, mirror: Path, refuses: Refuses) -> None:
    (mirror / "samples-1" / "finished.json").mkdir(parents=True)

    with (
        refuses(RunFolderError),
        mirrored_folder(str(mirror), drawn, JOURNAL, lambda told: None),
    ):
        pytest.fail("nothing is drawn")
