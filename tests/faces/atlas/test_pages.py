"""An atlas on disk."""

import json
from pathlib import Path
from typing import Any

from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.faces.atlas.pages import INDEX, PAGE, write_atlas
from brimful.faces.atlas.scope import Scope

SMALL = Scope(
    models=("HuggingFaceTB/SmolLM2-135M",),
    methods=("lora",),
    lengths=(512,),
    batches=(8,),
    tokens=(10_000_000,),
    devices=("Tesla T4",),
)


def _value(path: Path, function: str) -> Any:
    """The value that a script of the atlas hands to its page."""
    text = path.read_text(encoding="utf-8").strip()
    start = f"brimfulAtlas.{function}("
    assert text.startswith(start)
    return json.loads(text.removeprefix(start).removesuffix(");"))


def test_an_atlas_names_its_tables_and_all_of_them_are_there(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said: list[str] = []

    written = write_atlas(tmp_path / "atlas", SMALL, said.append)

    index = _value(tmp_path / "atlas" / INDEX, "index")
    (model,) = index["models"]
    part = _value(tmp_path / "atlas" / model["files"]["lora"], "tables")
    assert (part["model"], part["method"]) == (model["name"], "lora")
    assert len(part["tables"]["512/8/10000000"]) == len(index["devices"]) == 1
    assert index["devices"][0]["usable_bytes"] > 14 * 1024**3
    assert (written.num_tables, written.num_left_out) == (1, 0)
    assert written.size_bytes == sum(
        path.stat().st_size for path in (tmp_path / "atlas").rglob("*") if path.is_file()
    )
    assert said == snapshot


def test_an_older_atlas_is_replaced_and_its_other_tables_go(tmp_path: Path) -> None:
    write_atlas(tmp_path, SMALL, lambda text: None)
    (tmp_path / "tables" / "gone.lora.js").write_text("")

    write_atlas(tmp_path, SMALL, lambda text: None)

    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "huggingfacetb.smollm2-135m.lora.js",
        "index.js",
    ]


def test_what_an_interrupted_atlas_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "half.lora.js").write_text("")

    assert write_atlas(tmp_path, SMALL, lambda text: None).page == tmp_path / PAGE


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with refuses(RequestError):
        write_atlas(tmp_path, SMALL, lambda text: None)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "atlas").write_text("")

    with refuses(RequestError):
        write_atlas(tmp_path / "atlas", SMALL, lambda text: None)
