"""Files of evidence: what is in them, what never is, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.hardware.calibration import Described, note_run
from brimful.hardware.evidence import export, read


def _note(device: str = "A device", **changes: Any) -> None:
    note_run(
        device,
        measured={"peak_memory_bytes": 11.0, "step_time_s": 2.0},
        predicted={"peak_memory_bytes": 10.0, "step_time_s": 1.0},
        key="my-secret-recipe",
        basis="rates",
        described=Described(
            "all weights", {"weights": 9.0}, {"attention": 1.0}, {"step_time_s": [1.0, 0.5, 3.0]}
        ),
        **changes,
    )


def test_what_is_written_is_read_again_of_all_devices(tmp_path: Path) -> None:
    _note()
    _note("Another device")
    file = tmp_path / "evidence.json"

    assert export(file) == 2
    renamed = file.rename(tmp_path / "sent.json")
    runs = read(renamed)

    assert sorted(run.device for run in runs) == ["A device", "Another device"]
    assert runs[0].measured == {"peak_memory_bytes": 11.0, "step_time_s": 2.0}
    assert runs[0].shown == {"step_time_s": (1.0, 0.5, 3.0)}
    assert runs[0].memory_terms == {"weights": 9.0}


def test_names_of_recipes_and_hours_are_not_in_it(tmp_path: Path) -> None:
    _note()
    file = tmp_path / "evidence.json"
    export(file)

    [run] = json.loads(file.read_text())["runs"]
    assert "secret" not in file.read_text()
    assert len(run["month"]) == len("2026-11")
    assert run.keys().isdisjoint({"key", "made"})


def test_older_evidence_is_replaced_and_another_file_is_not(
    refuses: Refuses, tmp_path: Path
) -> None:
    _note()
    file, other = tmp_path / "evidence.json", tmp_path / "notes.json"
    export(file)
    _note()
    assert export(file) == 2
    other.write_text("{}")

    with refuses(RequestError, names=["notes.json"]):
        export(other)
    assert other.read_text() == "{}"


def test_without_a_run_there_is_nothing_to_write(refuses: Refuses, tmp_path: Path) -> None:
    with refuses(RequestError, names=["brimful run quickstart"]):
        export(tmp_path / "evidence.json")
    assert not (tmp_path / "evidence.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"format": "brimful plan"}',
        '{"format": "brimful evidence", "format_version": 9}',
        '{"format": "brimful evidence", "format_version": 1, "runs": [{"device": 1}]}',
    ],
)
def test_what_is_no_evidence_is_refused(refuses: Refuses, tmp_path: Path, text: str) -> None:
    file = tmp_path / "sent.json"
    file.write_text(text)

    with refuses(RequestError, names=["brimful evidence export FILE"]):
        read(file)
