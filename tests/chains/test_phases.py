"""What recipes consist of, in order."""

import json
from pathlib import Path

import pytest

from brimful.base.errors import RequestError
from brimful.chains.phases import (
    BaseScores,
    Member,
    RoundSampling,
    members,
    phases_of,
    recipes_to_plan,
    trained_first,
)
from brimful.data.counts import count
from brimful.recipe import load


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRIMFUL_RUNS", str(tmp_path))


def test_a_recipe_is_one_training() -> None:
    recipe = load("quickstart")
    assert phases_of(recipe) == [Member("", recipe)]
    assert recipes_to_plan(recipe) == {"": recipe}


def test_rounds_are_trainings_and_drawings_in_turn() -> None:
    recipe = load("unit-rft-smollm2", ["rft.rounds=2", "rft.seeds=[1, 2]"])
    found = phases_of(recipe)
    names = [phase.folder.name for phase in found]
    first = [
        "sft-seed1",
        "base",
        "samples-1-seed1",
        "rft-1-seed1",
        "samples-2-seed1",
        "rft-2-seed1",
    ]
    assert names[: len(first)] == first
    drawings = [phase for phase in found if isinstance(phase, RoundSampling)]
    assert [drawing.student and drawing.student.variant for drawing in drawings] == [
        "sft",
        "rft-1",
    ] * 2
    assert [len(drawing.before) for drawing in drawings] == [0, 1] * 2
    last = members(recipe)[-1].recipe
    assert [Path(path).parent.name for path in last.data.paths] == [
        "unit-rft-smollm2",
        "samples-1-seed2",
        "samples-2-seed2",
    ]
    assert last.rft is None
    assert last.evaluation.base == "never"  # scored once for all


def test_a_teacher_draws_in_the_student_s_place() -> None:
    found = phases_of(load("unit-rft"))
    assert all(phase.student is None for phase in found if isinstance(phase, RoundSampling))


def test_a_study_is_its_variants_with_every_seed_and_the_base_once() -> None:
    found = phases_of(load("code-rank-study"))
    assert [phase.folder.name for phase in found] == [
        *("lora-8", "lora-16", "lora-32", "qlora-16", "full"),
        "base",
    ]
    assert isinstance(found[-1], BaseScores)
    ablation = load("okadfa-ablation")
    assert len(phases_of(ablation)) == 30  # fresh models: there is no base
    assert len(recipes_to_plan(ablation)) == 10


def test_a_model_that_another_recipe_trains_comes_first_unless_it_is_there(tmp_path: Path) -> None:
    recipe = load("unit-rft-offline")
    assert list(recipes_to_plan(recipe)) == ["unit-base", ""]
    (tmp_path / "unit-base" / "model").mkdir(parents=True)
    assert trained_first(recipe) is None


def test_an_encoder_that_reads_a_classifiers_texts_is_planned_as_what_is_trained(
    tmp_path: Path,
) -> None:
    rows = [json.dumps({"text": f"message {number}", "label": "a"}) for number in range(90)]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    changes = ["data.file_type=auto", "data.text_column=text", "data.label_column=label"]
    recipe = load("moderation-offline", [f"data.path={tmp_path / 'texts.jsonl'}", *changes])
    (tmp_path / "tiny-encoder" / "model").mkdir(parents=True)  # of its own texts alone

    first = recipes_to_plan(recipe)["tiny-encoder"]

    assert first.run_name == "tiny-encoder-for-moderation-offline"
    counted = count(first)
    assert counted is not None
    assert 1 <= counted.train < 10  # some 1,000 bytes, in rows of 128 tokens
    both = load("moderation-offline", ["labels.pretrain=with_texts", "data.path=texts.jsonl"])
    paths = recipes_to_plan(both)["tiny-encoder"].data.paths
    assert [Path(path).name for path in paths] == ["texts.jsonl", "builtin:python-docs"]
    (tmp_path / first.run_name / "model").mkdir(parents=True)
    assert trained_first(recipe) is None
    other = load("moderation-offline", ["model=recipe:shakespeare-char"])
    with pytest.raises(RequestError, match="only method mlm reads texts without labels"):
        trained_first(other)
