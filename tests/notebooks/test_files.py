"""What lies in the repository: notebooks made from their texts, without outputs or traces of a
machine.
"""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from brimful.base.types import JsonDict

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
BUILD = runpy.run_path(str(NOTEBOOKS / "build.py"))
NAMES = BUILD["NAMES"]


def _cells(name: str, kind: str) -> list[Any]:
    return [
        cell
        for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4).cells
        if cell.cell_type == kind
    ]


def test_every_notebook_is_one_of_the_texts() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_what_its_text_makes(name: str) -> None:
    assert (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8") == BUILD["as_text"](name), (
        "write them anew: python notebooks/build.py"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_valid_and_holds_no_outputs_and_no_paths_of_a_machine(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    nbformat.validate(notebook)

    assert [cell.outputs for cell in _cells(name, "code") if cell.outputs] == []
    assert {cell.execution_count for cell in _cells(name, "code")} == {None}
    text = json.dumps(notebook)
    assert not re.search(r"/(?:home|root|Users|work|tmp)/|[A-Z]:\\\\", text)
    assert "{{" not in text, "a part that no text holds"


@pytest.mark.parametrize("name", NAMES)
def test_badges_open_the_notebook_itself(name: str) -> None:
    head = _cells(name, "markdown")[0].source

    assert (
        f"https://colab.research.google.com/github/brimful/brimful/blob/main/notebooks/{name}.ipynb"
        in head
    )
    assert (
        f"https://kaggle.com/kernels/welcome?src=https://github.com/brimful/brimful/blob/main/notebooks/{name}.ipynb"
        in head
    )
    assert re.search(r"^# \w", head, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_recipes_that_a_notebook_names_exist_at_both_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brimful.recipe import load

    monkeypatch.chdir(NOTEBOOKS)
    (named,) = {
        found
        for cell in _cells(name, "code")
        for found in re.findall(r'nb\.sized\("([\w-]+)"\)', cell.source)
    }
    others = {
        found
        for cell in _cells(name, "code")
        for line in re.findall(r"nb\.sized.*#(.*)", cell.source)
        for found in re.findall(r'"([\w-]+)"', line)
    }

    small = load(f"small/{named}.yaml")
    assert (small.name, small.method) == (load(named).name, load(named).method)
    for other in others:
        assert load(other).name == other


@pytest.mark.parametrize("name", NAMES)
def test_what_a_notebook_downloads_by_default_is_not_gated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of its recipe with its changes: one that the catalog knows and anyone may have, or
    none that is published.
    """
    import brimful.notebook as nb
    from brimful.model import catalog
    from brimful.recipe import load

    monkeypatch.delenv("BRIMFUL_NOTEBOOK", raising=False)
    (cell,) = [cell.source for cell in _cells(name, "code") if "nb.sized(" in cell.source]
    named: JsonDict = {"nb": nb}
    exec(cell.partition("\nnb.gpu")[0], named)  # noqa: S102 - the notebook's own cell
    model = load(named["RECIPE"], named["CHANGES"]).model
    if isinstance(model, str) and not model.startswith("recipe:"):
        row = catalog.find(model)
        assert row is not None
        assert not row.gated


def test_small_data_are_what_their_script_makes(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text(
        (NOTEBOOKS / "small" / "make.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    runpy.run_path(str(script), run_name="__main__")

    made = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path != script}
    assert made == {name: (NOTEBOOKS / "small" / name).read_bytes() for name in made}
    assert len(made) == 5
