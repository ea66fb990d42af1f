"""File operations that believe nothing: what was written is read back."""

import errno
import os
import time
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RunFolderError
from brimful.base.units import MIB
from brimful.mirror.files import CHUNK_BYTES, Entry, Files, IntegrityError, as_clause


class _Lossy(Files):
    """Writes nothing, or nothing but a part."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self._keep = keep

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data[: self._keep])


def test_a_copy_is_equal_and_counted_also_beyond_a_chunk_and_up_to_a_limit(tmp_path: Path) -> None:
    source, files = tmp_path / "source", Files()
    source.write_bytes(os.urandom(CHUNK_BYTES + 17))
    whole = files.copy(source, tmp_path / "whole")
    part = files.copy(source, tmp_path / "part", 1000)

    assert (tmp_path / "whole").read_bytes() == source.read_bytes()
    assert (tmp_path / "part").read_bytes() == source.read_bytes()[:1000]
    assert (whole.num_bytes, part.num_bytes) == (CHUNK_BYTES + 17, 1000)
    assert files.moved_bytes == CHUNK_BYTES + 1017
    files.require(tmp_path / "whole", whole)
    assert Entry.from_json(whole.to_json()) == whole


def test_a_file_shorter_than_its_limit_is_no_copy(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "source").write_bytes(b"short")
    with refuses(IntegrityError):
        Files().copy(tmp_path / "source", tmp_path / "target", 10)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (b"", "0 bytes"),
        (b"content, but not it", "bytes"),
        (b"cOntent", "SHA-256 differs"),
        (None, "missing"),
    ],
)
def test_a_file_that_reads_back_otherwise_is_told(
    tmp_path: Path, damage: bytes | None, told: str
) -> None:
    path, files = tmp_path / "x", Files()
    (tmp_path / "source").write_bytes(b"content")
    entry = files.copy(tmp_path / "source", path)
    path.unlink() if damage is None else path.write_bytes(damage)

    with pytest.raises(IntegrityError, match=told):
        files.require(path, entry)


@pytest.mark.parametrize("keep", [0, 3])
def test_a_small_file_whose_write_is_lost_leaves_the_old_one(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.json"
    Files().write_json(path, {"old": True})

    with pytest.raises(IntegrityError):
        _Lossy(keep).write_json(path, {"old": False})
    assert Files().read_json(path) == {"old": True}
    assert os.listdir(tmp_path) == ["x.json"]


def test_what_is_read_back_passes_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system cannot drop pages of its cache")
    told: list[int] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda descriptor, start, length, advice: told.append(advice)
    )
    (tmp_path / "x").write_bytes(b"content")

    assert list(Files().read(tmp_path / "x")) == [b"content"]
    assert told == [os.POSIX_FADV_DONTNEED]


def test_fetching_tells_a_damaged_file_from_a_full_disk_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    source, files = tmp_path / "source", Files()
    source.write_bytes(b"content")
    entry = files.copy(source, tmp_path / "x")
    files.fetch(tmp_path / "x", tmp_path / "back", entry)
    assert (tmp_path / "back").read_bytes() == b"content"

    (tmp_path / "x").write_bytes(b"c0ntent")
    with refuses(IntegrityError, names=["damaged"]):
        files.fetch(tmp_path / "x", tmp_path / "again", entry)
    with refuses(RunFolderError):
        files.fetch(tmp_path / "x", tmp_path / "missing" / "folder", entry)


def test_damaged_json_is_told_from_what_cannot_be_read_now(
    tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "x.json").write_text("{")
    for name, told in (("x.json", "is damaged"), ("y.json", "is missing")):
        with refuses(IntegrityError, names=[str(name), told]):
            Files().read_json(tmp_path / name)
    (tmp_path / "z.json").mkdir()
    with refuses(OSError, names=["directory"]):
        Files().read_json(tmp_path / "z.json")


def test_a_file_system_without_flushing_is_written_to_and_what_is_removed_is_emptied_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    Files().write_json(tmp_path / "x.json", {})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_text("content")
    with open(tmp_path / "folder" / "x", "rb") as in_the_bin:
        Files().remove(tmp_path / "folder")
        assert in_the_bin.read() == b""
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.write(99999, b""))
    monkeypatch.setattr(
        os,
        "write",
        lambda *arguments: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")),
    )
    with pytest.raises(OSError, match="Input/output"):
        Files().write_json(tmp_path / "x.json", {})


def test_a_copy_by_hard_links_is_not_emptied_with_what_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").write_text("of somebody else")
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "folder" / "x").write_text("content")
    os.link(tmp_path / "folder" / "x", tmp_path / "copy")
    Files().remove(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    assert (tmp_path / "copy").read_text() == "content"
    assert (tmp_path / "outside").read_text() == "of somebody else"


def test_a_slow_disk_answers_often_and_a_quick_one_is_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clocked(Files):
        """A disk whose flush takes a second for so many bytes; the clock stands otherwise."""

        def __init__(self, bytes_per_s: float) -> None:
            super().__init__()
            self.now_s, self.unsynced, self.bytes_per_s, self.syncs_s = (
                0.0,
                0,
                bytes_per_s,
                list[float](),
            )
            monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

        def write(self, descriptor: int, data: bytes) -> None:
            self.unsynced += len(data)

        def sync(self, descriptor: int) -> None:
            self.syncs_s.append(self.unsynced / self.bytes_per_s)
            self.now_s += self.syncs_s[-1]
            self.unsynced = 0

    with open(tmp_path / "source", "wb") as source:
        source.truncate(160 * MIB)
    slow = Clocked(0.3e6)
    slow.copy(tmp_path / "source", tmp_path / "slow")
    assert max(slow.syncs_s) < 15
    assert slow.syncs_s[10] < 5
    quick = Clocked(1e9)
    quick.copy(tmp_path / "source", tmp_path / "quick")
    assert len(quick.syncs_s) < 8


def test_reading_a_long_local_file_is_no_silence_of_the_mirror(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    files = Files()
    files.answered_s = 0.0
    assert files.entry_of(tmp_path / "x") == files.copy(tmp_path / "x", tmp_path / "y")
    assert files.moved_bytes == 7  # of the copy only
    assert files.answered_s > 0


def test_errors_of_the_file_system_read_as_clauses() -> None:
    assert as_clause(OSError(errno.ENOSPC, "No space left on device")) == "no space left on device"
    assert as_clause(OSError(errno.EACCES, "Permission denied", "/x")) == "permission denied (/x)"
    assert (
        as_clause(OSError(errno.EROFS, "Read-only file system", "/x/.metrics.jsonl.12ab.tmp"))
        == "read-only file system"
    )
    assert as_clause(IntegrityError("it is not")) == "it is not"
