"""Whether a recipe may write into a folder: decided before anything is changed."""

import shutil
from pathlib import Path

import pytest
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import RunFolderError
from brimful.base.manifest import note_hashes
from brimful.base.rundir import Lease, write_json_atomically
from brimful.recipe import Recipe
from brimful.training.admission import (
    Admission,
    admit,
    claim,
    describe,
    holds_no_work,
    refuse_other_recipe,
    refuse_unwritable,
    run_id_of,
    status_of,
    write_status,
)


def _run(folder: Path, recipe: Recipe, status: str = "stopped") -> Path:
    folder.mkdir(parents=True)
    describe(Admission(folder, continues=False, finished=False, changed=()), recipe)
    write_status(folder, status, recipe)  # type: ignore[arg-type]
    if status == "finished":
        _export(folder)
    return folder


def _export(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    note_hashes(folder / "model")


def test_a_new_folder_is_admitted_and_made_only_when_claimed(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "run"
    admission = admit(tiny(), folder, fresh=False)

    assert admission == Admission(folder, continues=False, finished=False, changed=())
    assert not folder.exists()
    with claim(admission):
        assert (folder / Lease.FILE_NAME).is_file()


def test_trying_to_write_leaves_nothing(tmp_path: Path, refuses: Refuses) -> None:
    refuse_unwritable(tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError, names=["run.folder=PATH"]):
        refuse_unwritable(tmp_path / "file" / "run")


def test_what_a_session_leaves_that_died_while_starting_is_a_new_run(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text("half")
    (folder / ".plan.json.0123.tmp").write_text("")

    assert not admit(tiny(), folder, fresh=False).continues


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_unfinished_work_continues_and_finished_work_is_finished(
    tiny: MakeRecipe, tmp_path: Path, status: str
) -> None:
    unfinished, finished = (_run(tmp_path / name, tiny(), name) for name in (status, "finished"))

    assert admit(tiny(), unfinished, fresh=False) == Admission(
        unfinished, continues=True, finished=False, changed=()
    )
    assert admit(tiny(), finished, fresh=False) == Admission(
        finished, continues=True, finished=True, changed=()
    )
    assert (status_of(unfinished), status_of(finished), status_of(tmp_path)) == (
        status,
        "finished",
        None,
    )


@pytest.mark.parametrize("damage", ["gone", "a changed bit", "a file more"])
def test_a_finished_run_whose_model_is_damaged_goes_on_from_its_checkpoint(
    tiny: MakeRecipe, tmp_path: Path, refuses: Refuses, damage: str
) -> None:
    folder = _run(tmp_path / "run", tiny(), "finished")
    if damage == "gone":
        shutil.rmtree(folder / "model")
    elif damage == "a changed bit":
        (folder / "model" / "config.json").write_text("[]")
    else:
        (folder / "model" / "adapter_config.json").write_text("{}")

    with refuses(RunFolderError, names=["run.name=run-2"]):
        admit(tiny(), folder, fresh=False)

    (folder / "checkpoints" / "step-00000012").mkdir(parents=True)
    admission = admit(tiny(), folder, fresh=False)
    assert (admission.continues, admission.finished) == (True, False)
    assert str(folder / "model") in admission.lost_model


def test_changes_that_leave_the_trajectory_alone_are_shown_and_need_no_word(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    folder = _run(tmp_path / "run", tiny())
    changed = tiny(
        "evaluation.every=3", "plan.micro_batch=2", "description=other", "run.name=other"
    )

    assert admit(changed, folder, fresh=False).changed == (
        "evaluation.every: 6 -> 3",
        "plan.micro_batch: auto -> 2",
    )


@pytest.mark.parametrize("word", ["optimizer.learning_rate", "optimizer"])
def test_a_changed_trajectory_is_refused_until_its_key_or_section_is_declared(
    tiny: MakeRecipe, tmp_path: Path, word: str, refuses: Refuses
) -> None:
    folder, changed = _run(tmp_path / "run", tiny()), tiny("optimizer.learning_rate=2e-2")

    with refuses(RunFolderError):
        admit(changed, folder, fresh=False)
    with refuses(RunFolderError):
        admit(changed, folder, fresh=False, accept=["optim"])
    assert admit(changed, folder, fresh=False, accept=[word]).changed == (
        "optimizer.learning_rate: 0.01 -> 0.02",
    )


def test_another_model_is_refused_whatever_is_declared(
    tiny: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    folder = _run(tmp_path / "run", tiny())

    with refuses(RunFolderError):
        admit(tiny("model.layers=3"), folder, fresh=False, accept=["model"])


def test_fresh_moves_unfinished_work_aside_whole(tiny: MakeRecipe, tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", tiny())
    (folder / "metrics.jsonl").write_text("{}\n")

    admission = admit(tiny("model.layers=3"), folder, fresh=True)
    with claim(admission):
        assert [path.name for path in folder.iterdir()] == [Lease.FILE_NAME]

    assert admission.moved_aside is not None
    assert {path.name for path in admission.moved_aside.iterdir()} == {
        "recipe.yaml",
        "run.json",
        "metrics.jsonl",
    }


def test_fresh_moves_nothing_that_another_process_writes(
    tiny: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    folder = _run(tmp_path / "run", tiny())
    admission = admit(tiny(), folder, fresh=True)

    with Lease.acquire(folder), refuses(RunFolderError):
        claim(admission)
    assert (folder / "run.json").is_file()


def test_a_run_of_a_newer_brimful_is_refused(
    tiny: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    folder = _run(tmp_path / "run", tiny())
    write_json_atomically(folder / "run.json", {"schema_version": 99, "status": "finished"})

    with refuses(RunFolderError):
        admit(tiny(), folder, fresh=False)


@pytest.mark.parametrize("damage", ["", '{"status', '{"checksum": "0"}'])
def test_a_damaged_status_is_refused(
    tiny: MakeRecipe, tmp_path: Path, damage: str, refuses: Refuses
) -> None:
    folder = _run(tmp_path / "run", tiny())
    (folder / "run.json").write_text(damage)
    with refuses(RunFolderError, names=["run.json"]):
        admit(tiny(), folder, fresh=False)


def test_a_run_keeps_its_number_through_every_status_and_a_new_one_has_another(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    folder, other = _run(tmp_path / "run", tiny()), _run(tmp_path / "other", tiny())
    number = run_id_of(folder)
    write_status(folder, "finished", tiny())
    _export(folder)
    describe(admit(tiny(), folder, fresh=False), tiny())

    assert number is not None
    assert run_id_of(folder) == number != run_id_of(other)
    assert run_id_of(tmp_path) is None
    write_json_atomically(
        folder / "run.json", {"schema_version": 1, "recipe": "tiny", "status": "stopped"}
    )  # from before runs had numbers
    assert run_id_of(folder) is None
    write_status(folder, "running", tiny())
    assert run_id_of(folder) is not None


def test_what_is_left_of_a_start_is_a_husk_and_anything_more_is_not(tmp_path: Path) -> None:
    assert holds_no_work(tmp_path / "none")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (Lease.FILE_NAME, "recipe.yaml", ".plan.json.12.tmp"):
        (folder / name).write_text("")
        assert holds_no_work(folder)
    (folder / "run.json").write_text("{}")
    assert not holds_no_work(folder)
    assert not holds_no_work(folder / "run.json")


def test_a_run_that_lies_elsewhere_is_compared_by_the_same_rules(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    refuse_other_recipe("there", tiny(), tiny("evaluation.every=3"), (), otherwise="go away")
    with refuses(RunFolderError):
        refuse_other_recipe("there", tiny(), tiny("model.layers=3"), (), otherwise="go away")
    with refuses(RunFolderError):
        refuse_other_recipe("there", tiny(), tiny("seed=2"), (), otherwise="go away")
    refuse_other_recipe("there", tiny(), tiny("seed=2"), ("seed",), otherwise="go away")
