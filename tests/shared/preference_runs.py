"""Runs on preferences that tests stop and compare."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import records_of, train
from fixture_types import MakeRecipe
from rich.console import Console
from transformers import PreTrainedModel

from brimful.base.errors import Interrupted
from brimful.base.rundir import read_journal
from brimful.base.types import JsonDict
from brimful.chains import pipeline, plans
from brimful.data.batches import MicroBatch
from brimful.hardware.probe import probe
from brimful.kinds.pairs import PairRunData
from brimful.kinds.run_data import gather
from brimful.planning.specs import model_facts
from brimful.planning.step import StepSpec
from brimful.planning.survey import prepare
from brimful.planning.trace import Trace
from brimful.recipe import Recipe
from brimful.rehearsal import timed_steps
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training
from brimful.selection.answer_journal import ANSWERS_FILE
from brimful.training.method import Method, Network
from brimful.training.tensorfile import load_tensors
from measured_steps import MeasuredSteps, measure_steps


def run(recipe: Recipe) -> Path:
    """Do all that a recipe says, and return the folder of the run."""
    return pipeline.run(recipe, Console(file=StringIO(), width=160)).parent


def steps_of(folder: Path) -> list[JsonDict]:
    """The journal's steps."""
    return records_of(folder, "step")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the trained model."""
    (file,) = (folder / "model").glob("*.safetensors")
    return load_tensors(file)


def step_of(recipe: Recipe) -> StepSpec:
    """The step of a recipe on this CPU."""
    return prepare(recipe, probe("cpu"), model=model_facts(recipe)).spec(recompute=False)


def assert_stopped_ends_like_undisturbed(
    recipe: MakeRecipe, shared: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped in its first evaluation and gone on with ends bit for bit like one
    that is not.
    """
    whole = train(recipe(*shared, "run.name=whole"))
    stopped_once = recipe(*shared, "run.name=stopped", "checkpoint.every=2")
    real, stops = PairRunData.validate, iter([True])

    def stopping(data: PairRunData, *args: Any, **values: Any) -> JsonDict:
        if next(stops, False):
            raise Interrupted("stopped", signal.SIGTERM)
        return real(data, *args, **values)

    monkeypatch.setattr(PairRunData, "validate", stopping)
    with pytest.raises(Interrupted):
        train(stopped_once)
    stopped = train(stopped_once)

    assert_ends_alike(whole, stopped)
    named = [[each["named"] for each in steps_of(folder)] for folder in (whole, stopped)]
    assert named[0][-4:] == named[1][-4:]


def assert_ends_alike(ours: Path, theirs: Path) -> None:
    """Two runs have the same weights to the bit."""
    first, second = weights_of(ours), weights_of(theirs)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def drawn_in(folder: Path) -> dict[tuple[int, str, int], list[int]]:
    """The tokens of the answers of a run, by round, question and number."""
    return {
        (each["round"], each["question"], each["number"]): each["token_ids"]
        for each in read_journal(folder / ANSWERS_FILE)
        if "found" not in each
    }


def messages_of(folder: Path) -> list[str]:
    """What the journal tells beside its records."""
    return [each["message"] for each in read_journal(folder / "metrics.jsonl") if "message" in each]


def planned_and_real(
    recipe: Recipe, spec: StepSpec, samples: int
) -> tuple[Trace, MeasuredSteps, PreTrainedModel]:
    """What is planned of a step, and what it takes on the recipe's model, which have the same peak
    to the byte.
    """
    planned = record_training(spec, config_of(spec), samples)
    data = gather(recipe, str(recipe.model))
    model = data.build(plans.plan(data.planned), torch.device("cpu"))
    measured = measure_steps(model, spec, samples)
    end = planned.marks["evaluation"]
    assert planned.live_E()[:end].max() == measured.live_E().max()
    return planned, measured, model


def assert_same_tensors(micro: MicroBatch, planned: MicroBatch, *, shapes: bool = True) -> None:
    """A real micro-batch has the tensors of the planned one."""
    assert micro.kept.keys() == planned.kept.keys()
    assert micro.tensors.keys() == planned.tensors.keys()
    for name, each in micro.kept.items():
        other = planned.kept[name]
        assert (each.ndim, each.dtype) == (other.ndim, other.dtype)
        assert each.shape == other.shape or not shapes


def assert_timed_with_few_scored(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of a recipe's step are timed with a loss of as many positions as its data have."""
    shares, real = [], timed_steps.method_of

    def watched(spec: StepSpec) -> Method:
        method = real(spec)

        def loss_sum(network: Network, micro: MicroBatch) -> torch.Tensor:
            assert micro.scored_N is not None
            shares.append(len(micro.scored_N) / micro.inputs_BT.numel())
            return method.loss_sum(network, micro)

        return replace(method, loss_sum=loss_sum)

    monkeypatch.setattr(timed_steps, "method_of", watched)
    timed = timed_steps.time_passes(step_of(recipe), 2, 0.5, 1, 0.25)

    assert timed is not None
    assert shares
    assert shares == pytest.approx([0.25] * len(shares), abs=0.02)
