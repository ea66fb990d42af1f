"""A study: every variant once per seed, the untuned model, one table; and it goes on where it
stopped.
"""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRecipe, Refuses
from rich.console import Console

from brimful.base.errors import DataError, PlanError, RecipeError, RunFolderError
from brimful.base.rundir import read_json
from brimful.chains import calls, pipeline, study, task_scores, training_session
from brimful.recipe import Recipe, load
from brimful.training.world import World

pytestmark = pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves

VARIANTS = (
    "study.variants={lora-2: [adapter.rank=2], full: [adapter=null, optimizer.learning_rate=1e-3]}"
)


@pytest.fixture
def small(tuning: MakeRecipe) -> MakeRecipe:
    return lambda *overrides: tuning("training.steps=4", "evaluation.every=4", VARIANTS, *overrides)


def _run(recipe: Recipe, told: StringIO | None = None) -> Path:
    return study.run_study(recipe, Console(file=told or StringIO(), width=160))


def test_a_study_trains_every_variant_and_says_which_differences_are_real(
    small: MakeRecipe,
) -> None:
    told = StringIO()
    folder = _run(small(), told).parent
    table = folder / "study.md"

    assert {entry.name for entry in folder.iterdir() if entry.is_dir()} == {
        "base",
        "lora-2",
        "full",
    }
    assert [run for run in ("base", "lora-2", "full") if run in table.read_text()] == [
        "base",
        "lora-2",
        "full",
    ]
    assert (folder / "lora-2" / "model" / "adapter_model.safetensors").exists()
    assert (folder / "full" / "model" / "model.safetensors").exists()
    assert read_json(folder / "study.json")["left_out"] == {}
    assert "Validation loss" in told.getvalue()


def test_an_interrupted_study_goes_on_with_the_unfinished_variant(
    small: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, trained = training_session.run_session, []

    def session(setup: Any) -> Any:
        trained.append(setup.run_folder.name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(setup)

    monkeypatch.setattr(training_session, "run_session", session)
    with pytest.raises(KeyboardInterrupt):
        _run(small())
    _run(small())
    _run(small())

    assert trained == ["lora-2", "full", "full"]


def test_a_damaged_study_is_mended_by_the_same_command(small: MakeRecipe) -> None:
    recipe, told = small(), StringIO()
    folder = _run(recipe).parent
    facts = read_json(folder / "study.json")
    losses = folder / "full" / "evaluations" / "validation-nats.json"
    before = losses.read_bytes()
    (folder / "study.json").write_text("{")
    losses.write_bytes(before[:-9])

    _run(recipe, told)

    assert "damaged-study.json" in told.getvalue()
    assert (folder / "damaged-study.json").read_text() == "{"
    assert losses.read_bytes() == before
    after = read_json(folder / "study.json")
    assert after["comparison"]["pairs"] == facts["comparison"]["pairs"]
    (folder / "study.json").unlink()
    losses.unlink()
    _run(recipe)
    assert read_json(folder / "study.json")["comparison"]["pairs"] == facts["comparison"]["pairs"]


@pytest.mark.parametrize("killed_in", [1, 2], ids=["a variant", "the untuned model"])
def test_an_evaluation_that_was_killed_is_taken_up_by_the_same_command(
    tuning: MakeRecipe, monkeypatch: pytest.MonkeyPatch, killed_in: int
) -> None:
    """The likelihood was written, tasks were not."""
    recipe = tuning(
        "training.steps=2",
        "evaluation.tasks=[bleu]",
        "evaluation.max_examples=2",
        "study.variants={lora-2: []}",
    )
    real, calls = task_scores.evaluate_tasks, []

    def evaluate_tasks(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == killed_in:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(task_scores, "evaluate_tasks", evaluate_tasks)
    with pytest.raises(KeyboardInterrupt):
        _run(recipe)
    folder = _run(recipe).parent

    assert all((folder / run / "evaluations" / "bleu.json").exists() for run in ("base", "lora-2"))
    assert len(calls) == 3


def test_a_variant_that_does_not_fit_is_left_out_with_the_reason(
    small: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pipeline.train

    def train(recipe: Recipe, *arguments: Any, **options: Any) -> Any:
        if recipe.adapter is None:
            raise PlanError("full needs about 9 GiB")
        return real(recipe, *arguments, **options)

    monkeypatch.setattr(pipeline, "train", train)
    page = _run(small())

    assert "full needs about 9 GiB" in page.read_text()
    assert list(read_json(page.parent / "study.json")["left_out"]) == ["full"]


def test_ranks_train_every_variant_together_and_leave_out_what_cannot_be_planned(
    tiny: MakeRecipe, ranks: Callable[..., list[Any]]
) -> None:
    variants = (
        "study.variants={first: [seed=1], large: [plan.leave_gib=100000, plan.spread=replicated],"
        " last: [seed=2]}"
    )
    recipe = tiny(variants, "training.steps=2")

    def act(world: World) -> str:
        return str(calls.run_several(recipe, Console(file=StringIO()), world=world))

    page, folder = map(Path, ranks(2, act))

    assert page.parent == folder
    left_out = read_json(folder / "study.json")["left_out"]
    assert list(left_out) == ["large"]
    assert re.search(r"[\d.]+ [MG]iB to use", left_out["large"])
    plans = [read_json(folder / name / "plan.json") for name in ("first", "last")]
    assert [plan["devices"] for plan in plans] == [2, 2]
    assert all((folder / name / "scores.json").exists() for name in ("first", "last"))


def test_every_variant_is_trained_with_every_seed(small: MakeRecipe) -> None:
    members = study.members(small("study.seeds=[1, 2]"))

    assert [(member.folder.name, member.recipe.seed) for member in members] == [
        ("lora-2-seed1", 1),
        ("lora-2-seed2", 2),
        ("full-seed1", 1),
        ("full-seed2", 2),
    ]
    assert members[0].recipe.study is None


def test_a_variant_may_change_length_and_batch_and_its_learning_rate_follows_the_rule(
    tuning: MakeRecipe,
) -> None:
    """As on the command line: one way to give a length replaces another."""
    variants = (
        "study.variants={large: [batch.sequences=16], long: [training.epochs=1], own:"
        " [batch.sequences=16, optimizer.learning_rate=1e-3]}"
    )
    large, long, own = (
        member.recipe
        for member in study.members(tuning(variants, "optimizer.scale_learning_rate=sqrt"))
    )

    assert [each.optimizer.learning_rate for each in (large, long, own)] == pytest.approx(
        [2e-2, 1e-2, 1e-3]
    )
    assert (long.training.epochs, long.training.steps) == (1, None)


def test_a_variant_without_kernels_here_is_left_out(
    tuning: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.model.published.find_spec", lambda name: None)
    page = _run(
        tuning(
            "training.steps=2",
            "study.variants={lora-2: [adapter.rank=2], qlora-2: [adapter.rank=2, quantize=nf4]}",
        )
    )

    assert "pip install" in read_json(page.parent / "study.json")["left_out"]["qlora-2"]


def test_a_variant_that_is_no_recipe_is_told_before_anything_is_trained(
    tuning: MakeRecipe, refuses: Refuses
) -> None:
    with refuses(RecipeError):
        study.members(tuning("study.variants={good: [], bad: [adapter.rnk=2]}"))


@pytest.mark.parametrize("name", ["base", "a b", "../x"])
def test_a_variants_name_is_a_folder_name(tuning: MakeRecipe, name: str, refuses: Refuses) -> None:
    with refuses(RecipeError):
        tuning(f"study.variants={{'{name}': []}}")


def test_a_folder_that_holds_something_else_is_refused(small: MakeRecipe, refuses: Refuses) -> None:
    folder = pipeline.folder_of(small())
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")

    with refuses(RunFolderError):
        _run(small())
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["code-rank-study", "code-offline"])
def test_the_variants_of_shipped_studies_are_recipes(name: str) -> None:
    recipe = load(name)
    members = study.members(recipe)

    assert [member.variant for member in members] == [
        "lora-8",
        "lora-16",
        "lora-32",
        "qlora-16",
        "full",
    ]
    assert [
        member.recipe.adapter.rank if member.recipe.adapter else None for member in members
    ] == [8, 16, 32, 16, None]
    assert [member.recipe.quantize for member in members] == ["none", "none", "none", "nf4", "none"]


def test_task_data_that_cannot_be_read_are_told_before_a_variant_is_trained(
    small: MakeRecipe, refuses: Refuses
) -> None:
    recipe = small("evaluation.tasks=[humaneval]", "evaluation.data={humaneval: nowhere.jsonl}")
    with refuses(DataError):
        _run(recipe)
    assert not pipeline.folder_of(recipe).exists()


def test_data_of_a_variant_that_cannot_be_read_are_told_before_the_first_is_trained(
    tuning: MakeRecipe,
) -> None:
    recipe = tuning("study.variants={good: [], bad: [data.path=nowhere.jsonl]}")
    with pytest.raises(DataError, match=r"no such file nowhere\.jsonl"):
        _run(recipe)
    assert not pipeline.folder_of(recipe).exists()
