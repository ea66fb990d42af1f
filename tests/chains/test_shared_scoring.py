"""Finished runs on three ranks: scores, answers and labels are those of one process, byte for byte."""

import json
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import train
from fixture_types import MakeRecipe
from rich.console import Console

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.chains.ranks import device_to_share
from brimful.chains.scoring import evaluate
from brimful.chains.task_scores import EvaluationRequest
from brimful.classification.predict import PredictionRequest, predict
from brimful.evaluation.nats import FOLDER
from brimful.recipe import load
from brimful.training.world import ALONE, World

Ranks = Callable[..., list[Any]]
TIMES = {"seconds", "tokens_per_second", "verification_seconds", "texts_per_second"}


def _evaluate(folder: Path, request: EvaluationRequest, world: World = ALONE) -> list[str]:
    torch.set_num_threads(1)
    evaluate(folder, Console(file=StringIO()), request=request, world=world)
    return []


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key not in TIMES}
    return list(map(_without_times, value)) if isinstance(value, list) else value


def _scores(folder: Path) -> JsonDict:
    """What an evaluation wrote: JSON without times, and the bytes of everything else."""
    written: JsonDict = {}
    for path in sorted([*folder.glob("scores.json"), *(folder / FOLDER).iterdir()]):
        if path.suffix == ".json":
            written[path.name] = _without_times(json.loads(path.read_text()))
            written[path.name].pop("checksum", None)
        else:
            written[path.name] = path.read_bytes()
        path.unlink()
    return written


STEPS = ("training.steps=2", "plan.micro_batch=1")


@pytest.mark.parametrize("kind", ["documents", "masked", "examples"])
def test_three_ranks_give_the_scores_of_one_process(
    kind: str, tiny: MakeRecipe, tuning: MakeRecipe, ranks: Ranks
) -> None:
    masked = ("method=mlm", "model.architecture=modernbert")
    recipe = {"documents": tiny, "masked": partial(tiny, *masked), "examples": tuning}[kind](*STEPS)

    _assert_same_scores(train(recipe), ranks)


def test_three_ranks_score_labels_as_one_process(labels_recipe_file: Path, ranks: Ranks) -> None:
    _assert_same_scores(train(load(str(labels_recipe_file), STEPS)), ranks)


def _assert_same_scores(folder: Path, ranks: Ranks) -> None:
    asked = EvaluationRequest()
    _evaluate(folder, asked)
    alone = _scores(folder)

    ranks(3, partial(_evaluate, folder, asked))

    assert _scores(folder) == alone
    assert len(alone) > 1


def test_three_ranks_write_the_answers_of_one_process_and_one_of_them_judges(
    tuning: MakeRecipe, ranks: Ranks
) -> None:
    folder = train(tuning("training.steps=2"))
    asked = EvaluationRequest(("bleu",), samples=2, temperature=0.9)
    _evaluate(folder, asked)
    alone = _scores(folder)

    ranks(3, partial(_evaluate, folder, asked))

    assert _scores(folder) == alone
    assert len(alone["bleu.jsonl"].splitlines()) > 3  # more than ranks


def test_three_ranks_predict_what_one_process_does_and_one_of_them_writes(
    labels_recipe_file: Path, tmp_path: Path, ranks: Ranks
) -> None:
    folder = train(load(str(labels_recipe_file), ["training.steps=2"]))
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"text": "{"red blue " * (n % 9)}{n}"}}\n' for n in range(60)))

    def act(name: str, world: World = ALONE) -> list[str]:
        torch.set_num_threads(1)
        told: list[str] = []
        request = PredictionRequest(str(texts), output=tmp_path / name, window=25)
        device = device_to_share(world, folder)
        predict(folder, request, tell=told.append, device=device, world=world)
        return told

    act("alone.jsonl")
    ranks(3, partial(act, "shared.jsonl"))

    assert (tmp_path / "shared.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert len((tmp_path / "alone.jsonl").read_text().splitlines()) == 60


def test_standard_input_is_refused_for_several(labels_recipe_file: Path, ranks: Ranks) -> None:
    folder = train(load(str(labels_recipe_file), ["training.steps=1"]))

    def act(world: World) -> str:
        with pytest.raises(RequestError, match="standard input can be read once"):
            predict(folder, PredictionRequest("-"), tell=print, world=world)
        return "refused"

    assert ranks(2, act) == ["refused"] * 2
