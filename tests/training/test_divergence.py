"""Training that diverges ends with an explanation whose advice works, never with a traceback."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import records_of
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from safetensors.torch import load_file, save_file

from brimful.base.errors import PlanError, TrainingStopped
from brimful.base.rundir import read_json
from brimful.chains.pipeline import train
from brimful.data.batches import MicroBatch
from brimful.training.divergence import (
    gave_up,
    noting_states,
    problem_of_steps,
    refuse_not_finite,
)
from brimful.training.method import Network
from brimful.training.precision import Precision
from brimful.training.state import Progress

QUIET = Console(quiet=True)


def _progress(step: int, *, skipped: int, in_a_row: int) -> Progress:
    progress = Progress.fresh(Precision("fp32"), torch.device("cpu"))
    progress.step = step
    progress.guard.skipped.fill_(skipped)
    progress.guard.bad_in_a_row.fill_(in_a_row)
    return progress


@pytest.mark.parametrize(
    ("step", "skipped", "in_a_row", "problem"),
    [
        (50, 4, 4, ""),
        (50, 5, 5, "5 steps in a row"),
        (51, 5, 5, ""),  # no look is due
        (99, 9, 5, "5 steps in a row"),  # the last step
        (99, 98, 4, ""),
        (99, 99, 4, "not one of 99 steps"),  # all with a loss scale that could still be lowered
    ],
)
def test_five_bad_steps_in_a_row_are_a_divergence_and_so_is_a_run_without_a_good_one(
    step: int, skipped: int, in_a_row: int, problem: str
) -> None:
    found = problem_of_steps(_progress(step, skipped=skipped, in_a_row=in_a_row), total_steps=99)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


@pytest.mark.parametrize("rollbacks", [0, 2])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_error_says_what_is_kept_what_may_be_wrong_and_how_to_go_on(
    tiny: MakeRecipe, snapshot: Any, rollbacks: int, precision: str
) -> None:
    error = gave_up(
        "5 steps in a row had a non-finite loss or gradient (step 50)",
        rollbacks,
        tiny(),
        Precision(precision),
        has_checkpoint=rollbacks > 0,
    )
    assert str(error) == snapshot


def test_weights_that_leave_fp16s_range_are_told_and_starting_over_as_advised_works(
    tiny: MakeRecipe, refuses: Refuses, tmp_path: Path
) -> None:
    options = ("plan.precision=fp16",)
    with refuses(TrainingStopped, names=["optimizer.learning_rate=0.1 --fresh"]) as caught:
        train(tiny("optimizer.learning_rate=1", *options), QUIET)
    assert caught.value.exit_code == 1
    assert read_json(tmp_path / "runs" / "tiny" / "run.json")["status"] == "stopped"

    train(tiny("optimizer.learning_rate=0.01", *options), QUIET, fresh=True)
    assert read_json(tmp_path / "runs" / "tiny" / "run.json")["status"] == "finished"


@pytest.mark.parametrize("scored", [True, False])
def test_activations_beyond_fp16_stop_at_the_first_step_and_the_advice_works(
    tuning: MakeRecipe, base_model: Path, refuses: Refuses, tmp_path: Path, *, scored: bool
) -> None:
    """In fp32 they are finite; a position may overflow that no loss looks at."""
    path = base_model / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.0.mlp.up_proj.weight"] *= 1e3
    weights["model.layers.0.mlp.down_proj.weight"] *= 1e5
    save_file(weights, path, metadata={"format": "pt"})
    recipe = tuning("plan.precision=fp16", f"data.loss_on={'all' if scored else 'completion'}")
    with refuses(TrainingStopped, names=["plan.precision=fp32 --fresh", "range of fp16"]):
        train(recipe, QUIET)
    steps = records_of(tmp_path / "runs" / "tuned", "step")
    assert steps == []

    train(tuning("plan.precision=fp32"), QUIET, fresh=True)
    assert read_json(tmp_path / "runs" / "tuned" / "run.json")["status"] == "finished"


def test_a_hidden_state_that_is_not_finite_makes_the_first_loss_no_number(
    tuning: MakeRecipe,
) -> None:
    noted: list[torch.Tensor] = []
    states = torch.tensor([[[1.0, math.inf]]])
    network = noting_states(Network(None, lambda _: states, 8), noted)  # type: ignore[arg-type]

    assert network.hidden_states(MicroBatch(torch.zeros(1, 1), torch.zeros(1, 1))) is states
    assert not torch.isfinite(torch.stack(noted)).any()
    refuse_not_finite(torch.tensor(1.0), Precision("fp16"))


def test_a_run_that_diverges_after_a_checkpoint_goes_on_from_it_as_advised(
    tiny: MakeRecipe, refuses: Refuses, tmp_path: Path
) -> None:
    """A rate without warm-up that decays the weights beyond every number."""
    sound = tiny("training.steps=6", "checkpoint.every=2", "optimizer.clip_norm=null")
    train(sound, QUIET)
    torn = ("training.steps=12", "checkpoint.every=2", "optimizer.clip_norm=null")
    with refuses(TrainingStopped, names=["after 2 rollbacks", "--accept-change optimizer"]):
        train(
            tiny("optimizer.learning_rate=1e30", *torn),
            QUIET,
            accept=["optimizer.learning_rate", "training.steps"],
        )

    train(
        tiny("optimizer.learning_rate=0.001", *torn),
        QUIET,
        accept=["optimizer.learning_rate", "training.steps"],
    )
    assert read_json(tmp_path / "runs" / "tiny" / "run.json")["status"] == "finished"


def test_a_published_model_with_weights_that_are_no_numbers_is_refused(
    tuning: MakeRecipe, base_model: Path, refuses: Refuses
) -> None:
    path = base_model / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    with refuses(PlanError, names=["layers.1.mlp.up_proj", "1 of its tensors"]):
        train(tuning(), QUIET)
