"""Presets: chosen by name, applied before the user's changes, resolved in the loaded recipe, and
told by name where they are wrong.
"""

import sys
from pathlib import Path

import jsonschema
import pytest
from fixture_types import Captured, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful import cli
from brimful.base.dotted import parse_yaml
from brimful.base.errors import RecipeError
from brimful.recipe import Recipe, differences, load, with_changes
from brimful.recipe.loading import presets_of
from brimful.recipe.presets import choosing

WITH_PRESETS = """
name: several
description: As written.
sequence_length: 16
batch: {sequences: 4}
training: {steps: 3}
model: {layers: 1, heads: 2, width: 8}
tokenizer: {vocabulary: 300}
data: {path: a.txt}
optimizer: {learning_rate: 1e-3, scale_learning_rate: linear}
presets:
  fast:
    description: The small one.
    changes: [run.name=several-fast, batch.tokens=128, seed=7]
  big-2:
    description: The large one.
    changes: [model.layers=2, "model.width=16", training.epochs=2, optimizer.learning_rate=5e-4]
  plain: {description: Nothing changed., changes: []}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "several.yaml"
    path.write_text(WITH_PRESETS)
    return path


def _refused(file: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(str(file), overrides)
    return str(caught.value)


def _problems(file: Path, *overrides: str) -> list[str]:
    return [
        line.removeprefix("  - ")
        for line in _refused(file, *overrides).splitlines()
        if line.startswith("  - ")
    ]


# --- choosing one


def test_a_preset_changes_what_it_names_and_describes_the_recipe(file: Path) -> None:
    assert differences(load(str(file)), load(str(file), ["preset=fast"])) == {
        "description": ("As written.", "The small one."),
        "run.name": (None, "several-fast"),
        "batch.sequences": (4, None),
        "batch.tokens": (None, 128),
        "seed": (1234, 7),
    }


def test_without_a_choice_the_recipe_is_as_written(file: Path) -> None:
    recipe = load(str(file))

    assert (recipe.description, recipe.seed, recipe.effective_batch, recipe.run_name) == (
        "As written.",
        1234,
        4,
        "several",
    )


@pytest.mark.parametrize(
    "overrides",
    [["preset=fast", "seed=9", "description=mine"], ["seed=9", "description=mine", "preset=fast"]],
)
def test_what_the_user_changes_stands_wherever_the_preset_is_named(
    file: Path, overrides: list[str]
) -> None:
    recipe = load(str(file), overrides)

    assert (recipe.seed, recipe.description, recipe.batch.tokens) == (9, "mine", 128)


def test_of_two_choices_the_last_counts(file: Path) -> None:
    assert load(str(file), ["preset=fast", "preset=big-2"]) == load(str(file), ["preset=big-2"])


def test_a_file_can_choose_a_preset_and_the_user_another_or_none(file: Path) -> None:
    as_written, fast, big = (
        load(str(file)),
        load(str(file), ["preset=fast"]),
        load(str(file), ["preset=big-2"]),
    )
    file.write_text(f"{WITH_PRESETS}preset: fast\n")

    assert load(str(file)) == fast
    assert load(str(file), ["preset=big-2"]) == big
    assert load(str(file), ["preset=null"]) == as_written


def test_a_preset_can_be_changed_and_added_on_the_command_line(file: Path) -> None:
    changed = ["preset=fast", "presets.fast.changes=[seed=8]"]
    added = ["preset=own", "presets.own={description: Mine., changes: [seed=8]}"]

    assert (load(str(file), changed).seed, load(str(file), changed).effective_batch) == (8, 4)
    assert (load(str(file), added).seed, load(str(file), added).description) == (8, "Mine.")


def test_what_chooses_is_told_from_what_changes() -> None:
    assert choosing(
        ["seed=1", "preset=a", "presets.a.changes=[x=1]", "presetting=3", "data.preset=4"]
    ) == ["preset=a", "presets.a.changes=[x=1]"]


# --- the learning rate that follows the batch


def test_the_batch_of_a_preset_is_the_recipes_own_and_scales_nothing(file: Path) -> None:
    assert load(str(file), ["preset=fast"]).optimizer.learning_rate == 1e-3


def test_the_batch_of_the_user_scales_the_learning_rate_of_the_preset(file: Path) -> None:
    assert load(
        str(file), ["batch.sequences=16", "preset=fast"]
    ).optimizer.learning_rate == pytest.approx(2e-3)
    assert load(
        str(file), ["batch.sequences=8", "preset=big-2"]
    ).optimizer.learning_rate == pytest.approx(1e-3)


# --- what is kept


@pytest.mark.parametrize(
    "overrides", [[], ["preset=fast"], ["preset=big-2", "batch.sequences=8"], ["preset=plain"]]
)
def test_the_written_recipe_holds_no_presets_and_loads_back_to_an_equal_one(
    file: Path, tmp_path: Path, overrides: list[str]
) -> None:
    recipe = load(str(file), overrides)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())

    assert not {"preset", "presets"} & set(parse_yaml(recipe.to_yaml()))
    assert load(str(tmp_path / "again.yaml")) == recipe
    assert with_changes(recipe, [], "again") == recipe


def test_a_change_of_a_loaded_recipe_applies_its_preset_no_second_time(file: Path) -> None:
    recipe = load(str(file), ["preset=fast", "seed=9"])

    assert with_changes(recipe, ["model.layers=3"], "variant deep").seed == 9


def test_a_variant_of_a_study_comes_after_the_preset_and_chooses_none(
    file: Path, refuses: Refuses
) -> None:
    fast = load(str(file), ["preset=fast"])

    with refuses(RecipeError, names=["preset=big-2"]):
        with_changes(fast, ["preset=big-2"], "variant deep")


def test_a_file_with_presets_agrees_with_the_schema() -> None:
    jsonschema.validate(parse_yaml(WITH_PRESETS + "preset: fast\n"), Recipe.model_json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            parse_yaml(WITH_PRESETS) | {"presets": {"fast": ["seed=1"]}}, Recipe.model_json_schema()
        )


# --- what is wrong is told


def test_an_unknown_preset_is_told_with_the_nearest_and_all(
    file: Path, snapshot: SnapshotAssertion
) -> None:
    assert _refused(file, "preset=fats") == snapshot
    assert _refused(file, "preset=gpu") == snapshot


def test_an_unknown_preset_that_the_file_chooses_is_told(
    file: Path, snapshot: SnapshotAssertion
) -> None:
    file.write_text(f"{WITH_PRESETS}preset: fats\n")

    assert _refused(file) == snapshot
    assert load(str(file), ["preset=fast"]).seed == 7


def test_a_choice_where_there_are_no_presets_is_refused(refuses: Refuses) -> None:
    with refuses(RecipeError, names=["preset=fast"]):
        load("quickstart", ["preset=fast"])


def test_what_a_preset_breaks_is_told_under_its_name_and_the_rest_without_it(
    file: Path, snapshot: SnapshotAssertion
) -> None:
    changes = (
        "presets.fast.changes=[model.layers=none, optimizer.learning_rat=1, oops,"
        " sequence_length=8]"
    )

    assert (
        _problems(file, "preset=fast", changes, "seed=x", "model.depth=3", "sequence_length=none")
        == snapshot
    )


def test_what_the_file_breaks_is_not_blamed_on_the_preset(
    file: Path, snapshot: SnapshotAssertion
) -> None:
    file.write_text(WITH_PRESETS.replace("heads: 2", "heads: two"))

    assert _problems(file, "preset=fast") == snapshot


def test_a_recipe_that_only_a_preset_makes_whole_says_which_there_are(
    file: Path, snapshot: SnapshotAssertion
) -> None:
    file.write_text(WITH_PRESETS.replace("training: {steps: 3}\n", ""))

    assert load(str(file), ["preset=big-2"]).training.epochs == 2
    assert _refused(file) == snapshot
    assert _refused(file, "preset=plain") == snapshot


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("preset=3", "preset: must be a valid string, got 3"),
        ("presets=fast", "presets: must be a valid dictionary, got 'fast'"),
        ("presets.fast.changes=seed=1", "presets.fast.changes: must be a valid list, got 'seed=1'"),
        (
            "presets.fast.changes=[preset=plain]",
            (
                "presets.fast.changes: a preset cannot choose or change presets: leave out"
                " 'preset=plain', got ['preset=plain']"
            ),
        ),
        ("presets.fast.steps=3", "presets.fast.steps: unknown key."),
        ("presets.fast.change=[]", "presets.fast.change: unknown key - did you mean 'changes'?"),
        ("presets.own={changes: []}", "presets.own.description: required, but missing"),
        (
            "presets={-x: {description: a, changes: []}}",
            "presets: name '-x': use letters, digits, '_' and '-', not starting with '-'",
        ),
        (
            "presets.fast.description=[",
            "presets.fast.description: '[' is not a YAML value; quote it",
        ),
    ],
)
def test_presets_that_are_none_are_told_with_path_and_rule(
    file: Path, override: str, problem: str
) -> None:
    assert _problems(file, override) == [problem]


def test_all_that_is_wrong_is_told_at_once(file: Path, snapshot: SnapshotAssertion) -> None:
    assert _problems(file, "presets.fast.steps=3", "seed=x") == snapshot


def test_presets_that_cannot_be_read_are_refused(file: Path, refuses: Refuses) -> None:
    file.write_text(WITH_PRESETS.replace("changes: []", "changes: none"))

    with refuses(RecipeError, names=["several.yaml", "presets.plain"]):
        presets_of(str(file))


# --- what there is, is told


def test_the_presets_of_a_recipe_are_told_in_the_order_of_the_file(file: Path) -> None:
    assert {name: preset.description for name, preset in presets_of(str(file)).items()} == {
        "fast": "The small one.",
        "big-2": "The large one.",
        "plain": "Nothing changed.",
    }
    assert presets_of("quickstart") == {}


def test_the_verb_recipes_lists_and_shows_the_presets(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    package = tmp_path / "shipped_with_presets"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "several.yaml").write_text(file.read_text())
    (package / "single.yaml").write_text(WITH_PRESETS.partition("presets:")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("brimful.recipe.loading.SHIPPED_PACKAGE", package.name)

    def told(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["brimful", "recipes", *arguments])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        assert not ending.value.code
        return capsys.readouterr().out

    assert told() == "several  As written. [preset=fast|big-2|plain]\nsingle   As written.\n"
    assert told("show", "several") == WITH_PRESETS


def test_the_batch_of_a_preset_is_not_told_as_the_users_change(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def noted(*overrides: str) -> str:
        monkeypatch.setattr(
            sys, "argv", ["brimful", "plan", str(file), *overrides, "plan.device=cuda:99"]
        )
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().err

    assert "note B" not in noted("preset=fast")
    assert "note B101: an optimizer step sees 256 tokens instead of 128" in noted(
        "preset=fast", "batch.sequences=16"
    )
