"""Traces of single steps that come with brimful: found for the steps of their recipes, stored as if
they were traced, and left alone where they are damaged or of other libraries.
"""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from brimful.planning.step import StepSpec
from brimful.rehearsal import shipped_traces, store
from brimful.rehearsal.shipped import ABOUT, write_archive
from brimful.rehearsal.shipped_traces import SHIPPED_TRACES, name_of_trace, trace_with_brimful
from brimful.rehearsal.store import StoredTraces
from ship_traces import steps_of


def _step() -> StepSpec:
    return next(step for step in steps_of("quickstart") if step.autocast == "bf16")


def _refuse(spec: StepSpec) -> None:
    raise AssertionError(f"traced {spec.key()}")


def test_a_shipped_step_is_not_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_trace_all", _refuse)

    found = StoredTraces(_step(), tmp_path).at(8)

    assert found.parameters > 2_000_000
    assert StoredTraces(_step(), tmp_path, shipped=None).at(8).parameters == found.parameters


def test_another_step_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_trace_all", _refuse)

    with pytest.raises(AssertionError, match="traced"):
        StoredTraces(_step(), tmp_path, shipped=None).at(8)


@pytest.mark.parametrize("damage", ["versions", "entry", "about"])
def test_a_damaged_or_foreign_archive_is_not_used(damage: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(SHIPPED_TRACES / "quickstart.zip") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(entries.pop(ABOUT))
    if damage == "versions":
        about["versions"]["torch"] = "1.0.0"
    if damage == "about":
        about = {}
    if damage == "entry":
        entries = {name: content[:-9] + b"123456789" for name, content in entries.items()}
    write_archive(tmp_path / "quickstart.zip", about, entries)
    shipped_traces._archives.cache_clear()

    assert any(name_of_trace(step, "1") in entries for step in steps_of("quickstart"))
    assert trace_with_brimful(_step(), "1", tmp_path) is None


def test_an_archive_is_found_by_its_step(tmp_path: Path) -> None:
    shutil.copy(SHIPPED_TRACES / "quickstart.zip", tmp_path)

    content = trace_with_brimful(_step(), "1", tmp_path)

    assert content is not None
    assert content == trace_with_brimful(_step(), "1", SHIPPED_TRACES)
