"""The files of a study are read leniently: what is damaged or missing is left out."""

import json
from pathlib import Path

from brimful.report.comparison.study_folder import read_study
from brimful.runs.parsing import parse
from brimful.selection.choose import SelectionRules
from brimful.selection.statistics import Statistics, statistics_of


def test_damaged_files_are_an_empty_study_with_the_name_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("[")
    (tmp_path / "study.json").write_text("[1]")

    study = read_study(tmp_path)

    assert (study.name, study.recipe.published_model, study.data, study.rounds) == (
        tmp_path.name,
        "",
        (),
        (),
    )
    assert study.changes("lora-8") == ()


def test_a_recipe_names_its_model_data_and_the_changes_of_variants(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: my-study\nmodel: org/model\ndata: {path: [a, b]}\n"
        "study: {variants: {lora-8: [adapter.rank=8]}}\n"
    )

    study = read_study(tmp_path)

    assert (study.name, study.recipe.published_model, study.data) == (
        "my-study",
        "org/model",
        ("a", "b"),
    )
    assert study.changes("lora-8") == ("adapter.rank=8",)


def test_rounds_come_in_order_and_missing_numbers_are_0(tmp_path: Path) -> None:
    rounds = [{"round": 2, "trained_tokens": 5}, {"seed": 7}, "no"]
    (tmp_path / "study.json").write_text(json.dumps({"rounds": rounds}))

    first, second = read_study(tmp_path).rounds

    assert (first.round, first.seed, first.statistics.samples) == (0, "7", 0)
    assert (second.round, second.trained_tokens) == (2, {"": 5})


def test_statistics_of_no_samples_keep_their_counts() -> None:
    statistics = statistics_of([], [], SelectionRules(4, 1))

    read = parse(Statistics, statistics.to_json())

    assert (read.fates, read.questions_by_kept) == (statistics.fates, statistics.questions_by_kept)
    assert (read.samples, read.correct, read.kinds, read.reasons) == (0, None, {}, [])
