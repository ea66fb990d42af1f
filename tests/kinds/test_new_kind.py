"""A further kind of run needs one row, one module and one method, and nothing else: it is planned,
trained, scored and reported because these are there.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe
from rich.console import Console

import brimful.kinds
import brimful.training.methods
from brimful.base.errors import BrimfulError
from brimful.base.rundir import read_journal, read_json
from brimful.base.types import JsonDict
from brimful.chains import pipeline, plans
from brimful.data.batches import MicroBatch
from brimful.hardware.probe import probe
from brimful.kinds.run_data import AnyRunData, gather, run_data_class
from brimful.planning.family_key import family_keys_of
from brimful.planning.specs import model_facts
from brimful.planning.step import StepSpec
from brimful.planning.survey import prepare
from brimful.planning.trace import KINDS as KINDS_OF_STORAGES
from brimful.planning.trace import Trace
from brimful.recipe import KINDS, Kind, Recipe
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training
from measured_steps import measure_steps

HERE = Path(__file__).parent
PAIRS = 3
"""In a micro-batch, of two rows each."""
BESIDE_BASE = "prefer_beside_base"


@pytest.fixture
def _pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind `duels` with the method `prefer`, as if their two files and their row were there;
    under a second name, the method compares the model with what it was before tuning.
    """
    names = {"toy_kind.py": ["duels"], "toy_method.py": ["prefer", BESIDE_BASE]}
    packages = {"toy_kind.py": brimful.kinds, "toy_method.py": brimful.training.methods}
    for file, package in packages.items():
        folder = tmp_path / package.__name__
        folder.mkdir()
        for name in names[file]:
            shutil.copy(HERE / file, folder / f"{name}.py")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    duels = Kind(
        "duels",
        ("prefer", BESIDE_BASE),
        rows="texts",
        starts_from="published",
        rows_per_sample=2,
        step_options=lambda recipe: {"beside_base": True} if recipe.method == BESIDE_BASE else {},
    )
    monkeypatch.setitem(KINDS, "duels", duels)
    yield
    for module in ("kinds.duels", "training.methods.prefer", f"training.methods.{BESIDE_BASE}"):
        sys.modules.pop(f"brimful.{module}", None)


@pytest.fixture
def preferring(tuning: MakeRecipe, tmp_path: Path) -> MakeRecipe:
    """`preferring("key=value", ...)` gives a recipe on 40 pairs, all answers of which make rows of
    a few tokens more than `sequence_length` where that is cut to their length.
    """
    rows = [
        {"prompt": f"say red {number:02}", "chosen": " red red red", "rejected": " red red blue"}
        for number in range(40)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return lambda *overrides: tuning("method=prefer", f"data.path={path}", *overrides)


@pytest.mark.usefixtures("_pairs")
@pytest.mark.parametrize("method", ["prefer", BESIDE_BASE])
def test_a_kind_of_pairs_is_planned_trained_scored_and_reported(
    preferring: MakeRecipe, method: str
) -> None:
    recipe = preferring(f"method={method}", "training.steps=6")

    report = pipeline.run(recipe, Console(file=StringIO(), width=160))

    folder = report.parent
    records = list(read_journal(folder / "metrics.jsonl"))
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert {"validation"} <= set(read_json(folder / "scores.json"))
    assert "rejected" in read_json(folder / "data.json")["fingerprints"]
    assert method in report.read_text()


@pytest.mark.usefixtures("_pairs")
@pytest.mark.parametrize("method", ["prefer", BESIDE_BASE])
def test_what_is_planned_is_what_a_real_pass_takes_to_the_byte(
    preferring: MakeRecipe, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    recipe, data = _full_rows(preferring, f"method={method}")
    spec = _step_of(recipe)
    planned = record_training(spec, config_of(spec), PAIRS)

    micro, model = _real_micro_batch(data), _real_model(data)
    monkeypatch.setattr(run_data_class(recipe.kind), "blank", lambda *_: _again(micro))
    measured = measure_steps(model, spec, PAIRS)

    assert micro.inputs_BT.shape == (2 * PAIRS, recipe.sequence_length)
    real = [*micro.tensors.values(), *micro.kept.values()]
    assert _sizes(planned, "inputs")[: len(real)] == [each.nbytes for each in real]
    logits_bytes = 4 * micro.inputs_BT.numel() * model.config.vocab_size
    end = planned.marks["evaluation"]
    made = planned.events_E[:end][planned.events_E[:end] > 0] - 1
    assert (planned.sizes_S[made] == logits_bytes).sum() == (
        measured.changes_E == logits_bytes
    ).sum()
    assert (measured.changes_E == logits_bytes).sum() >= 3
    assert planned.live_E()[:end].max() == measured.live_E().max()


@pytest.mark.usefixtures("_pairs")
def test_its_plan_is_not_that_of_another_method(preferring: MakeRecipe) -> None:
    steps = {
        method: _step_of(preferring(f"method={method}"))
        for method in ("sft", "prefer", BESIDE_BASE)
    }
    peaks = {
        name: record_training(spec, config_of(spec), 2).live_E().max()
        for name, spec in steps.items()
    }

    assert len({family_keys_of(spec)[0] for spec in steps.values()}) == 3
    assert peaks["sft"] < peaks["prefer"] < peaks[BESIDE_BASE]
    assert plans.plan(preferring(), "T4").micro_batches == (4,)


@pytest.mark.usefixtures("_pairs")
def test_without_adapters_there_is_no_model_from_before(preferring: MakeRecipe) -> None:
    recipe = preferring(f"method={BESIDE_BASE}", "adapter=null")

    with pytest.raises(BrimfulError, match=r"adapter\.rank=16"):
        plans.survey(recipe)


def _full_rows(preferring: MakeRecipe, *overrides: str) -> tuple[Recipe, AnyRunData]:
    """Return the recipe with the sequence length of its longest row, and its data."""
    recipe = preferring(*overrides)
    data = gather(recipe, str(recipe.model))
    longest = int(data.splits["train"].lengths_E.max()) - 1
    recipe = preferring(*overrides, f"sequence_length={longest}")
    return recipe, gather(recipe, str(recipe.model))


def _step_of(recipe: Recipe) -> StepSpec:
    return prepare(recipe, probe("cpu"), model=model_facts(recipe)).spec(recompute=False)


def _real_micro_batch(data: AnyRunData) -> MicroBatch:
    batch = data.sequences(plans.plan(data.planned)).batch(0, PAIRS)
    (micro,) = batch.micro_batches((PAIRS,))
    return micro


def _real_model(data: AnyRunData) -> Any:
    return data.build(plans.plan(data.planned), torch.device("cpu"))


def _again(micro: MicroBatch) -> MicroBatch:
    """Return the same in tensors of their own, as each pass has them."""
    copies: JsonDict = {name: each.clone() for name, each in micro.tensors.items()}
    return replace(micro, **copies, kept={name: each.clone() for name, each in micro.kept.items()})


def _sizes(trace: Trace, kind: str) -> list[int]:
    return trace.sizes_S[trace.kinds_S == KINDS_OF_STORAGES.index(kind)].tolist()  # type: ignore[no-any-return]
