"""Which files of a folder are read, and what is said of the others."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data.folders import files_of, reason_against, suffix_of
from brimful.data.readers import Reading
from brimful.data.sources import open_rows, open_source
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]


def names_read(folder: Path, *, as_rows: bool = False, **reading: Any) -> list[str]:
    return [path.name for path in files_of(folder, Reading(**reading), as_rows=as_rows).readings]


def write(folder: Path, **contents: str | bytes) -> Path:
    """Files by name, `__` for a dot and `_of_` for a folder."""
    for name, content in contents.items():
        path = folder / name.replace("_of_", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_every_kind_of_text_is_read_and_the_rest_is_counted_with_the_reason(
    tmp_path: Path, data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """Thirty texts and thirty programs, and what lies about in such a folder."""
    for number in range(30):
        write(tmp_path, **{f"t{number}__txt": "prose\n", f"src_of_p{number}__py": "x = 1\n"})
    write(
        tmp_path,
        notes__md="# Notes\n",
        page__html="<p>x</p>\n",
        paper__tex="\\section{x}\n",
        guide__rst="Guide\n",
        Makefile="all:\n",
        zipped__md__gz=gzip.compress(b"zipped\n"),
        photo__png=b"\x89PNG",
        letter__docx=b"PK",
        weights__bin=b"\x00\x01",
        package__json='{"name": "x"}\n',
        values__csv="a,b\n1,2\n",
        empty__py="",
        latin__py="# é\n".encode("latin-1"),
        damaged__py=b"x\x00\x01\x02\x03",
        data__xyz="text of unknown kind\n",
        __git_of_config="hidden",
    )
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere.py")
    source = open_source(data_recipe(tmp_path))
    texts = list(source.parts[0].splits["train"])
    assert len(texts) == 66
    assert [texts.count("prose\n"), texts.count("x = 1\n")] == [30, 30]
    assert source.notes == snapshot


def test_data_beside_a_readme_is_read_without_it_and_programs_with_it(tmp_path: Path) -> None:
    """A README beside tables or `.txt` describes them."""
    write(tmp_path, LICENSE="x", README__md="x", a__txt="x")
    assert names_read(tmp_path) == ["a.txt"]
    write(tmp_path, b__py="x")
    assert names_read(tmp_path) == ["LICENSE", "README.md", "a.txt", "b.py"]


def test_a_table_beside_text_is_read_where_it_has_the_text_column(tmp_path: Path) -> None:
    """Settings in JSON and tables of other columns are left out; alone, a table is always tried."""
    write(
        tmp_path,
        a__md="x",
        rows__jsonl='{"text": "x"}\n',
        other__csv="x,y\n1,2\n",
        package__json='{"name": "x"}',
        torn__jsonl='{"text": ',
    )
    assert names_read(tmp_path) == ["a.md", "rows.jsonl"]
    assert names_read(tmp_path, text_column="y") == ["a.md", "other.csv"]
    (tmp_path / "a.md").unlink()
    assert len(names_read(tmp_path)) == 4


def test_rows_are_read_from_tables_and_text_beside_them_is_left_out(
    tmp_path: Path, data_recipe: Make, refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    """Without any table that is an error."""
    write(tmp_path, a__jsonl='{"q": 1}\n', notes__md="x", b__txt="x")
    source = open_rows(data_recipe(tmp_path))
    assert [row.columns for row in source.parts[0].splits["train"]] == [{"q": 1}]
    assert source.notes == snapshot
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.txt").unlink()
    with refuses(DataError, names=["no columns"]):
        open_rows(data_recipe(tmp_path))


def test_names_of_programs_are_no_splits_but_those_of_folders_are(
    tmp_path: Path, data_recipe: Make
) -> None:
    """`train.py` and `test_x.py` lie beside each other in many repositories."""
    write(tmp_path, train__py="a", test_x__py="b", model__py="c")
    assert sorted(open_source(data_recipe(tmp_path)).parts[0].splits["train"]) == ["a", "b", "c"]
    write(tmp_path, **{"train_of_a__md": "d", "valid_of_a__md": "e"})
    splits = open_source(data_recipe(tmp_path)).parts[0].splits
    assert {name: list(texts) for name, texts in splits.items()} == {
        "train": ["d"],
        "validation": ["e"],
    }


def test_with_a_file_type_every_file_that_is_not_hidden_is_read(tmp_path: Path) -> None:
    """As before there were kinds of text."""
    write(tmp_path, a__xyz="x", b__png="x", __hidden="x")
    assert names_read(tmp_path, file_type="txt") == ["a.xyz", "b.png"]


def test_a_single_file_of_text_is_read_whatever_its_name(
    tmp_path: Path, data_recipe: Make, refuses: Refuses
) -> None:
    """With a note where the name says nothing; what is no text is refused by name."""
    write(tmp_path, a__md="x", b__xyz="y", NOTES="z", c__pdf=b"%PDF", d__md=b"\x00\x00\x00")
    for name, text, notes in [("a.md", "x", 0), ("b.xyz", "y", 1), ("NOTES", "z", 1)]:
        source = open_source(data_recipe(tmp_path / name))
        assert list(source.parts[0].splits["train"]) == [text]
        assert len(source.notes) == notes
    for name in ("c.pdf", "d.md"):
        with refuses(DataError, names=[name]):
            open_source(data_recipe(tmp_path / name))
    with refuses(DataError, names=["data.file_type"]):
        open_rows(data_recipe(tmp_path / "a.md"))


@pytest.mark.parametrize(
    ("name", "content", "encoding", "reason"),
    [
        ("a.py", b"x = 1\n", "utf-8", None),
        ("a", b"text\n", "utf-8", None),
        ("a.51060", b"text\n", "utf-8", None),
        ("a.md", "é".encode("utf-16"), "utf-16", None),
        ("a.md", "é".encode("latin-1"), "auto", None),
        ("a.md", "é".encode("latin-1"), "utf-8", "not UTF-8"),
        ("a.md", b" \n", "utf-8", "empty"),
        ("a.md", b"\x01\x02\x03\x04", "utf-8", "binary"),
        ("a.jpg", b"text", "utf-8", "images"),
        ("a.zip", b"text", "utf-8", "archives"),
        ("a.xyz", b"text", "utf-8", "of unknown kind"),
    ],
)
def test_the_reason_against_a_file(
    tmp_path: Path, name: str, content: bytes, encoding: str, reason: str | None
) -> None:
    """By its name, then by its bytes."""
    (tmp_path / name).write_bytes(content)
    found = reason_against(tmp_path / name, encoding)
    assert found is None if reason is None else str(found).startswith(reason)


def test_the_end_of_a_name() -> None:
    """In small letters, without `.gz`; a number is none."""
    names = ["A.PY", "a.md.gz", "Makefile", "51060.2", "a.gz"]
    assert [suffix_of(Path(name)) for name in names] == [".py", ".md", "", "", ""]
