"""Encoding, delimiter and compression are found in the files, and said."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from learned_rows import LINES, PAIRS, learned

from brimful.base.errors import DataError
from brimful.data.sources import open_rows, open_source
from brimful.recipe import DataRecipe


def zstandard(raw: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(raw)
    return bytes(sink.getvalue())


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard,
}


@pytest.mark.parametrize("end", PACKED)
@pytest.mark.parametrize("encoding", ["utf-8", "auto"])
def test_compressed_files_are_read_as_what_is_in_them(
    tmp_path: Path,
    data_recipe: Callable[..., DataRecipe],
    end: str,
    encoding: str,
) -> None:
    """Rows and text; a torn one is named."""
    path = tmp_path / f"rows.jsonl{end}"
    packed = PACKED[end](LINES * 1000)
    path.write_bytes(packed)
    found = learned(data_recipe(path, encoding=encoding))["train"]
    assert found == [(row["prompt"], row["completion"]) for row in PAIRS] * 1000
    text = tmp_path / f"text.txt{end}"
    text.write_bytes(PACKED[end](LINES))
    source = open_source(data_recipe(text, encoding=encoding))
    assert list(source.parts[0].splits["train"]) == [LINES.decode()]
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        learned(data_recipe(path, encoding=encoding))


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
def test_the_delimiter_of_a_csv_is_found_and_said(
    tmp_path: Path, data_recipe: Callable[..., DataRecipe], mark: str
) -> None:
    """Excel in Europe writes semicolons; commas within numbers and text part nothing."""
    path = tmp_path / "rows.csv"
    fields = [("prompt", "completion"), ('"1,5?"', '"yes, 1,5"'), (f'"two\nlines{mark} here"', "x")]
    path.write_text("".join(f"{mark.join(row)}\n" for row in fields))
    source = open_rows(data_recipe(path))
    assert learned(data_recipe(path))["train"] == [
        ("1,5?", "yes, 1,5"),
        (f"two\nlines{mark} here", "x"),
    ]
    assert any("data.delimiter" in note for note in source.notes) == (mark != ",")
    path.write_text(f"sep={mark}\n{path.read_text()}")
    assert len(learned(data_recipe(path, delimiter=mark))["train"]) == 2


def test_utf_16_is_known_by_its_mark(
    tmp_path: Path, data_recipe: Callable[..., DataRecipe]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES.decode().encode("utf-16"))
    assert learned(data_recipe(path))["train"][1] == ("q1", "ä, 1")
    assert "byte order mark" in open_rows(data_recipe(path)).notes[0]
    assert len(learned(data_recipe(tmp_path))["train"]) == 4
