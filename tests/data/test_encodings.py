"""Bytes become lines in the encoding that is asked for or found, and a byte that does not fit is
named by its place.
"""

import bz2
import gzip
import io
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data import encodings
from brimful.data.encodings import check_encoding, decoded_lines, detect, lines_of_bytes

TEXT = "größer\r\nnaïve – “quoted”\nlast"
LINES = ["größer\n", "naïve – “quoted”\n", "last"]


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_a_file_is_read_alike_whether_its_encoding_is_named_or_found(
    tmp_path: Path, encoding: str, name: str
) -> None:
    """Byte order marks are no text, CRLF becomes LF."""
    path = written(tmp_path / name, TEXT.encode(encoding))
    assert list(decoded_lines(path, encoding)) == list(decoded_lines(path, "auto")) == LINES


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_found_by_its_nul_bytes(
    tmp_path: Path, encoding: str, snapshot: SnapshotAssertion
) -> None:
    """And said."""
    path = written(tmp_path / "a.txt", TEXT.encode(encoding))
    found = detect(path)
    assert (found.encoding, list(decoded_lines(path, "auto"))) == (encoding, LINES)
    assert found.note is not None
    assert found.note == snapshot


def test_utf_8_is_nothing_to_speak_of(tmp_path: Path) -> None:
    """With a mark, without, in ASCII alone, and empty."""
    for raw in (TEXT.encode(), b"\xef\xbb\xbf" + TEXT.encode(), b"plain", b""):
        assert (detect(written(tmp_path / "a", raw)).encoding, detect(tmp_path / "a").note) == (
            "utf-8",
            None,
        )


def test_what_is_not_utf_8_is_read_as_cp1252_and_the_first_byte_is_named(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """The whole file, with a note."""
    found = detect(written(tmp_path / "a", "fine\nété".encode("cp1252")))
    assert found.encoding == "cp1252"
    assert found.note is not None
    assert found.note == snapshot
    assert "mixed" not in found.note


def test_mixed_encodings_are_one_decision_for_the_whole_file_and_that_is_said(
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    """UTF-8 lines in a file that is read otherwise come out garbled."""
    path = written(tmp_path / "a", "grün\nblau\n".encode() + "rosé\n".encode("latin-1") + b"gelb\n")
    note = detect(path).note
    assert note is not None
    assert note == snapshot
    assert list(decoded_lines(path, "auto")) == ["grÃ¼n\n", "blau\n", "rosé\n", "gelb\n"]


def test_mixed_encodings_in_a_file_of_a_named_encoding_are_an_error(
    tmp_path: Path, refuses: Refuses
) -> None:
    """With file, line, byte, and both ways out."""
    path = written(tmp_path / "a.csv", "grün\n".encode() + "rosé\n".encode("latin-1"))
    with refuses(
        DataError, names=["a.csv:2", "byte 4", "0xe9", "data.encoding=auto", "iconv -f latin1"]
    ):
        list(decoded_lines(path))


def test_a_byte_that_even_cp1252_lacks_is_an_error(tmp_path: Path, refuses: Refuses) -> None:
    """It has five holes."""
    with refuses(DataError, names=["byte 2", "0x81"]):
        list(decoded_lines(written(tmp_path / "a", b"x\x81"), "auto"))


def test_a_stream_of_utf_16_says_what_it_looks_like(refuses: Refuses) -> None:
    """By its mark; a file is read by it."""
    with refuses(DataError, names=["byte 1", "data.encoding=utf-16"]):
        list(lines_of_bytes(io.BytesIO(TEXT.encode("utf-16")), "utf-8", "standard input"))


def test_a_torn_utf_16_file_names_the_line(tmp_path: Path, refuses: Refuses) -> None:
    """Half a character at its end."""
    with refuses(DataError):
        list(decoded_lines(written(tmp_path / "a", "one\ntwo".encode("utf-16")[:-1]), "utf-16"))


@pytest.mark.parametrize(
    "name",
    [
        "latin_one",
        "utf8x",
        "base64",
    ],
)
def test_an_encoding_that_python_does_not_have_is_refused(name: str, refuses: Refuses) -> None:
    """So are codecs that are not of text."""
    with refuses(DataError):
        check_encoding(name)


def test_what_is_read_once_needs_a_named_encoding(refuses: Refuses) -> None:
    """Standard input cannot be looked at twice."""
    assert (
        list(lines_of_bytes(io.BytesIO(TEXT.encode("cp1252")), "cp1252", "standard input")) == LINES
    )
    with refuses(DataError):
        list(lines_of_bytes(io.BytesIO(b""), "auto", "standard input"))


def test_a_file_that_unpacks_to_far_more_than_text_does_is_refused(
    tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And unpacked, as the message says, it is read."""
    monkeypatch.setattr(encodings, "_MOST_UNPACKED_BYTES", 1 << 20)
    line = b"0" * 99 + b"\n"
    path = written(tmp_path / "zeros.txt.gz", line * 20_000)
    with refuses(DataError, names=[str(path), "gunzip"]):
        list(decoded_lines(path))
    assert len(list(decoded_lines(written(tmp_path / "zeros.txt", line * 20_000)))) == 20_000
    assert len(list(decoded_lines(written(tmp_path / "less.txt.gz", line * 10_000)))) == 10_000


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_newlines_without_end_are_refused_before_the_file_is_read_to_its_end(
    pack: Callable[[bytes], bytes],
    tmp_path: Path,
    refuses: Refuses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a line: those that a large file may unpack to would take minutes."""
    monkeypatch.setattr(encodings, "_MOST_UNPACKED_BYTES", 1 << 16)
    end = {gzip.compress: "gz", bz2.compress: "bz2", lzma.compress: "xz"}[pack]
    noise = random.Random(0).randbytes(1 << 20)
    path = tmp_path / f"lines.txt.{end}"
    path.write_bytes(pack(b"\n" * (8 << 20)) + pack(noise))
    num_lines = 0
    with refuses(DataError, names=[str(path), "what was read of it"]):
        for _ in decoded_lines(path, "latin-1"):
            num_lines += 1
    assert num_lines < 4 << 20


def test_a_line_longer_than_memory_should_hold_is_named(
    tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "MOST_LINE_BYTES", 1000)
    path = written(tmp_path / "a.txt", b"x" * 999 + b"\n" + b"y" * 1001)
    for encoding in ("utf-8", "auto"):
        with refuses(DataError, names=[f"{path}:2", "fold"]):
            list(decoded_lines(path, encoding))
