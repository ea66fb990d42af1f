"""Commands as they are to be typed: the one that continues finds the very folder, wherever that
lies and however it is called.
"""

import shlex
from pathlib import Path

import pytest
from fixture_types import MakeRecipe, MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.chains.pipeline import folder_of
from brimful.recipe import Recipe, load
from brimful.report.commands import continue_command, is_several, name_of, repeat_command
from brimful.report.kinds import use_command
from brimful.report.page.headline import commands
from brimful.report.page.reproduce import steps_to_reproduce
from brimful.runs.folder import read_run


def reaches(command: str | None) -> tuple[str, Path]:
    """The verb of a command, and the folder that it would train."""
    assert command is not None
    program, verb, recipe, *changes = shlex.split(command)
    assert program == "brimful"
    return verb, folder_of(load(recipe, changes)).resolve()


def written(folder: Path, recipe: Recipe, name: str = "recipe.yaml") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text(recipe.to_yaml())
    return folder


@pytest.mark.parametrize(
    "place",
    [
        "runs/tiny",
        "runs/renamed",
        "runs/tiny.replaced-20261122-1",
        "else where/tiny",
        "runs/deeper/tiny",
    ],
)
def test_the_command_that_continues_finds_the_folder(
    tiny: MakeRecipe, tmp_path: Path, place: str
) -> None:
    folder = written(tmp_path / place, tiny())
    assert reaches(continue_command(folder)) == ("train", folder)
    assert reaches(continue_command(folder, command="brimful run tiny.yaml 'x")) == ("run", folder)


def test_a_run_in_its_place_needs_no_changes(tiny: MakeRecipe, tmp_path: Path) -> None:
    folder = written(tmp_path / "runs" / "tiny", tiny())
    assert continue_command(folder) == f"brimful train {folder}/recipe.yaml"


def test_a_folder_of_its_own_is_kept(tiny: MakeRecipe, tmp_path: Path) -> None:
    folder = written(tmp_path / "mine" / "tiny", tiny(f"run.folder={tmp_path / 'mine'}"))
    assert continue_command(folder) == f"brimful train {folder}/recipe.yaml"


def test_a_member_goes_on_with_its_study(tiny: MakeRecipe, tmp_path: Path) -> None:
    study = written(
        tmp_path / "runs" / "s", tiny("study={variants: {a: []}}", "name=s"), "study.yaml"
    )
    member = written(study / "a", tiny(f"run.folder={study}", "run.name=a"))
    assert is_several(study)
    assert reaches(continue_command(member)) == ("run", study)
    assert continue_command(member) == continue_command(study)
    moved = study.rename(tmp_path / "runs" / "t")
    assert reaches(continue_command(moved / "a")) == ("run", moved)


def test_a_chain_that_was_moved_has_no_command(tmp_path: Path) -> None:
    chain = written(tmp_path / "runs" / "unit-rft-offline", load("unit-rft-offline"), "study.yaml")
    assert reaches(continue_command(chain)) == ("run", chain)
    assert continue_command(chain.rename(tmp_path / "runs" / "other")) is None


def test_a_copy_in_a_mirror_goes_on_in_the_runs_folder(tiny: MakeRecipe, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    folder = written(drive / "tiny", tiny(f"run.mirror={drive}"))
    assert continue_command(folder, is_mirrored=True) == f"brimful train {folder}/recipe.yaml"
    mounted = drive.rename(tmp_path / "mounted elsewhere")
    command = continue_command(mounted / "tiny", is_mirrored=True)
    assert reaches(command) == ("train", tmp_path / "runs" / "tiny")
    assert command is not None
    assert load(shlex.split(command)[2], shlex.split(command)[3:]).run.mirror == str(mounted)


@pytest.mark.parametrize("text", ["", "name: [", "method: magic\n"])
def test_what_has_no_recipe_has_no_command(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    assert continue_command(tmp_path) is None
    assert continue_command(tmp_path / "absent") is None


def test_a_folder_whose_name_no_run_can_have_has_no_command(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    assert continue_command(written(tmp_path / "runs" / "my run", tiny())) is None


def test_runs_are_called_by_their_place_below_the_runs_folder(tmp_path: Path) -> None:
    assert name_of(tmp_path / "runs" / "s" / "a") == "s/a"
    assert name_of(tmp_path / "runs" / "--help") == "./--help"
    assert name_of(tmp_path / "runs") == str(tmp_path / "runs")
    assert name_of(tmp_path / "elsewhere") == str(tmp_path / "elsewhere")


def test_a_finished_run_is_used_for_what_it_is(new_run: MakeRun) -> None:
    assert use_command(read_run(new_run("text"))) == 'brimful generate text --prompt "..."'
    assert (
        use_command(read_run(new_run("masked", recipe="name: m\nmethod: mlm\n")))
        == "brimful evaluate masked"
    )
    assert (
        use_command(read_run(new_run("sorted", recipe="name: s\nmethod: classify\n")))
        == "brimful predict sorted FILE"
    )


def test_repeating_a_run_leaves_its_old_places_and_session_behind(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run(
        "first", recipe="run: {name: first, folder: /mnt/runs, mirror: /mnt/drive, session: 11h}\n"
    )
    command = repeat_command(read_run(folder), "a recipe.yaml")
    assert (
        command
        == "brimful run 'a recipe.yaml' run.name=first-again run.folder=null run.mirror=null"
        " run.session=null"
    )
    again = load(
        "quickstart",
        [
            "run.folder=/mnt/runs",
            "run.mirror=/mnt/drive",
            "run.session=11h",
            *shlex.split(command)[3:],
        ],
    )
    assert (again.run_name, again.run.folder, again.run.mirror, again.run.session) == (
        "first-again",
        None,
        None,
        None,
    )
    for told in (commands(read_run(folder))[0].text, steps_to_reproduce(read_run(folder))[-1].text):
        assert told == snapshot
    assert (
        repeat_command(read_run(new_run("plain")), "recipe.yaml")
        == "brimful run recipe.yaml run.name=plain-again"
    )
