"""The files that decide a run's answers say when they are damaged."""

import json
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Journal, write_journal_atomically, write_json_atomically
from brimful.hardware.monitored import monitored_until
from brimful.runs.deciding import (
    lost_records,
    num_records_of,
    problem_of,
    read_deciding,
    read_recipe_text,
    write_recipe,
)

TEXT = "name: tiny\nseed: 12\n"


def test_every_other_byte_of_a_recipe_is_noticed(tmp_path: Path) -> None:
    write_recipe(tmp_path, TEXT)
    path = tmp_path / "recipe.yaml"
    content = path.read_bytes()
    assert read_recipe_text(path) == TEXT
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        if place < content.index(b"\n") - 16:  # in the words of the comment
            assert read_recipe_text(path) == TEXT
        else:
            with pytest.raises(RunFolderError, match=r"differs from the checksum"):
                read_recipe_text(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert problem_of(path)


def test_a_recipe_without_a_checksum_is_read(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    assert read_recipe_text(tmp_path / "recipe.yaml") == TEXT


@pytest.mark.parametrize("num_kept", range(4))
def test_a_finished_run_says_how_many_records_its_journals_lost(
    tmp_path: Path, num_kept: int
) -> None:
    with Journal(tmp_path / "metrics.jsonl") as journal:
        for step in range(4):
            journal.append({"kind": "step", "step": step})
    status = {"schema_version": 1, "status": "finished", "records": num_records_of(tmp_path)}
    write_json_atomically(tmp_path / "run.json", status, with_checksum=True)
    assert lost_records(tmp_path) == {}

    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:num_kept]))
    told = lost_records(tmp_path)["metrics.jsonl"]
    assert told.startswith(f"metrics.jsonl: {4 - num_kept} record")


def test_an_unfinished_run_says_that_its_journal_lost_its_end(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    with Journal(tmp_path / "metrics.jsonl") as journal:
        for step in range(4):
            journal.append({"kind": "step", "step": step})
    state = json.dumps({"records": num_records_of(tmp_path, is_growing=True)})
    (checkpoint / "state.json").write_text(state)
    assert lost_records(tmp_path) == {}

    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:3]))
    assert lost_records(tmp_path)["metrics.jsonl"] == snapshot
    journal.path.unlink()
    assert lost_records(tmp_path)["metrics.jsonl"] == snapshot


def test_of_a_growing_monitor_only_its_presence_is_noted(tmp_path: Path) -> None:
    with Journal(tmp_path / "monitor.jsonl") as journal:
        for _ in range(4):
            journal.append({"kind": "sample"})
    assert num_records_of(tmp_path, is_growing=True) == {"monitor.jsonl": 1}
    assert num_records_of(tmp_path) == {"monitor.jsonl": 4}


def test_an_unfinished_run_says_that_its_monitor_lost_its_end(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    monitor = tmp_path / "monitor.jsonl"
    samples = [{"kind": "sample", "time": 100.5 + 2 * number} for number in range(4)]
    write_journal_atomically(monitor, samples)
    assert monitored_until(tmp_path) == 106
    state = {"records": {"monitor.jsonl": 1}, "monitored_until": 106}
    write_json_atomically(checkpoint / "state.json", state)
    assert lost_records(tmp_path) == {}

    write_journal_atomically(monitor, [samples[0], samples[3]])  # merged, as it grows
    assert lost_records(tmp_path) == {}
    write_journal_atomically(monitor, samples[:3])
    assert lost_records(tmp_path)["monitor.jsonl"] == snapshot
    monitor.write_bytes(monitor.read_bytes()[:-1])
    assert "cut off" in lost_records(tmp_path)["monitor.jsonl"]


def test_a_record_of_a_journal_in_place_of_the_status_is_damage(
    tmp_path: Path, refuses: Refuses
) -> None:
    write_json_atomically(tmp_path / "run.json", {"prompt": "Say red.", "text": "red"})

    with refuses(RunFolderError):
        read_deciding(tmp_path, "run.json")


def test_a_journal_of_one_record_in_place_of_another_file_is_damage(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write_journal_atomically(tmp_path / "samples.jsonl", [{"prompt": "Say red.", "text": "red"}])
    (tmp_path / "samples.jsonl").rename(tmp_path / "plan.json")

    assert problem_of(tmp_path / "plan.json") == snapshot
