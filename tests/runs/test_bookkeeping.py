"""The small files of a run folder are read leniently."""

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.runs.bookkeeping import (
    best_step_of,
    hashes_in,
    read_drawn_samples,
    read_study_record,
    recorded_status,
)


def written(path: Path, values: Any) -> Path:
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"schema_version": 1, "status": "finished"}, "finished"),
        ({"schema_version": 1, "status": "resting"}, "unreadable"),
        ({"schema_version": 99, "status": "finished"}, "unreadable"),
        ("{", "unreadable"),
        ([], "unreadable"),
    ],
)
def test_the_status_is_one_that_is_known(tmp_path: Path, content: Any, status: str) -> None:
    assert recorded_status(tmp_path) is None
    written(tmp_path / "run.json", content)

    assert recorded_status(tmp_path) == status


def test_the_runs_of_a_comparison_are_those_of_its_variants(tmp_path: Path) -> None:
    variants = [{"runs": ["runs/s/a-1", "runs/s/a-2"]}, {"runs": ["runs/s/b-1"]}, {}, 3]
    written(tmp_path / "study.json", {"comparison": {"variants": variants}, "left_out": {"c": "?"}})

    study = read_study_record(tmp_path)

    assert study is not None
    assert study.compared_runs == ("runs/s/a-1", "runs/s/a-2", "runs/s/b-1")
    assert study.left_out == {"c": "?"}


@pytest.mark.parametrize("content", ["", "[]", '{"comparison": '])
def test_a_damaged_record_of_a_study_is_none(tmp_path: Path, content: str) -> None:
    written(tmp_path / "study.json", content)

    assert read_study_record(tmp_path) is None
    assert read_study_record(tmp_path / "absent") is None


def test_a_study_that_was_not_compared_has_no_runs(tmp_path: Path) -> None:
    written(tmp_path / "study.json", {"comparison": None, "left_out": 3})

    study = read_study_record(tmp_path)

    assert study is not None
    assert (study.comparison, study.compared_runs, study.left_out) == ({}, (), {})


def test_samples_of_a_round_say_how_many_are_kept(tmp_path: Path) -> None:
    facts = {"records": 12, "statistics": {"fates": {"kept": 5, "wrong": 7}}}

    drawn = read_drawn_samples(written(tmp_path / "sampling.json", facts))

    assert drawn is not None
    assert (drawn.records, drawn.statistics.kept) == (12, 5)


def test_a_round_without_its_facts_is_none(tmp_path: Path) -> None:
    assert read_drawn_samples(tmp_path / "sampling.json") is None
    assert read_drawn_samples(written(tmp_path / "sampling.json", {})) is None
    unknown = read_drawn_samples(written(tmp_path / "sampling.json", {"statistics": 3}))
    assert unknown is not None
    assert (unknown.records, unknown.statistics.kept) == (0, None)


def test_hashes_and_the_best_step_are_read_where_they_are_there(tmp_path: Path) -> None:
    assert hashes_in(tmp_path / "POINT.json") == {}
    assert best_step_of(tmp_path) is None
    written(tmp_path / "POINT.json", {"files": {"plan.json": {"sha256": "0"}}})
    written(tmp_path / "state.json", {"progress": {"best_step": 6}})

    assert hashes_in(tmp_path / "POINT.json") == {"plan.json": {"sha256": "0"}}
    assert best_step_of(tmp_path) == 6
