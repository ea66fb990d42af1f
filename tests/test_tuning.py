"""Published models tuned through the same loop, checkpoints and run folder as any other run."""

import json
import os
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from brimful import pipeline, scoring
from brimful.base.errors import BrimfulError, CheckpointError, DataError, PlanError, RecipeError, RunFolderError
from brimful.base.rundir import read_journal, read_json
from brimful.generation.load import load_run, load_untuned
from brimful.recipe import Recipe
from brimful.training import loop
from brimful.training.checkpoint import CheckpointStore, differences, load

pytestmark = pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves

Tuning = Callable[..., Recipe]
CPU = torch.device("cpu")
MANNERS = {"lora": [], "qlora": ["quantize=nf4"], "full": ["adapter=null", "optimizer.learning_rate=1e-3"], "8bit": ["optimizer.kind=adamw_8bit"]}


def _train(recipe: Recipe, **options: Any) -> Path:
    return pipeline.train(recipe, Console(file=StringIO()), **options).folder


def _final(folder: Path) -> Any:
    store = CheckpointStore(folder / "checkpoints", keep=2)
    return load(store.path_of(store.steps()[-1]))


def _validation_losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_journal(folder / "metrics.jsonl") if record["kind"] == "evaluation"]


def test_tuning_lowers_the_loss_of_held_out_answers(tuning: Tuning) -> None:
    folder = _train(tuning("training.steps=24", "evaluation.every=8"))
    losses = _validation_losses(folder)

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < scoring.evaluate(folder, Console(file=StringIO()), untuned=True)["validation"]["loss"] - 0.3


@pytest.mark.parametrize("manner", MANNERS)
def test_killed_runs_end_bit_for_bit_like_undisturbed_ones(tuning: Tuning, manner: str) -> None:
    options = ["checkpoint.every=2", *MANNERS[manner]]
    undisturbed = _train(tuning("run.name=undisturbed", *options))
    recipe = tuning("run.name=killed", *options)
    child = os.fork()
    if child == 0:
        real, calls = loop.guarded_update, []

        def kill_in_step_six(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        loop.guarded_update = kill_in_step_six
        try:
            _train(recipe)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    folder = _train(recipe)

    assert differences(_final(folder), _final(undisturbed)) == []
    weights = "model.safetensors" if manner == "full" else "adapter_model.safetensors"
    assert (folder / "model" / weights).read_bytes() == (undisturbed / "model" / weights).read_bytes()


@pytest.mark.parametrize("change", [["plan.packing=padded"], ["plan.micro_batch=1"], ["plan.recompute=true"], ["plan.loss_chunk=16"]])
def test_how_a_step_is_cut_does_not_change_what_is_learned(tuning: Tuning, change: list[str]) -> None:
    packed, other = (_final(_train(tuning(f"run.name={name}", *options))) for name, options in (("packed", []), ("other", change)))
    for name, weight in packed.tensors["model"].items():
        torch.testing.assert_close(other.tensors["model"][name], weight, rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_adapters_holds_no_frozen_weight(tuning: Tuning) -> None:
    names = _final(_train(tuning())).tensors["model"]

    assert names
    assert all("lora_" in name for name in names)


def test_a_tuned_run_answers_as_it_was_trained_and_the_untuned_model_is_still_there(tuning: Tuning) -> None:
    folder = _train(tuning())
    tuned, untuned = load_run(folder, CPU, torch.float32), load_untuned(folder, CPU)
    ids = torch.tensor([tuned.prompt_ids("Say red twice.")])

    assert tuned.takes_messages
    assert ids.tolist() == [untuned.prompt_ids("Say red twice.")]
    assert not torch.equal(tuned.model(ids).logits, untuned.model(ids).logits)


def test_a_base_that_changed_is_refused_by_the_next_session_and_by_generation(tuning: Tuning, base_model: Path) -> None:
    folder = _train(tuning("training.steps=4"))
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(base_model)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    other.save_pretrained(base_model)

    with pytest.raises(RunFolderError, match="has changed since"):
        load_run(folder, CPU, torch.float32)
    with pytest.raises(CheckpointError, match="another base model"):
        _train(tuning(), accept=["training"])


def test_facts_of_a_tuned_run_name_its_base_and_what_was_dropped(tuning: Tuning, base_model: Path) -> None:
    facts = read_json(_train(tuning("sequence_length=60")) / "data.json")

    assert facts["base"]["source"] == str(base_model)
    assert facts["splits"]["train"]["dropped"] >= 0
    assert facts["prompts"] == "messages"


def test_a_model_that_another_recipe_trains_is_trained_first(tuning: Tuning, tiny: Tuning, tmp_path: Path) -> None:
    first = tmp_path / "first.yaml"
    first.write_text(tiny("training.steps=3", "model.context=64", "name=first").to_yaml())
    recipe = tuning(f"model=recipe:{first}", "training.steps=2")

    folder = _train(recipe)

    assert (folder.parent / "first" / "model" / "model.safetensors").exists()
    assert read_json(folder / "data.json")["base"]["source"] == str((folder.parent / "first" / "model").resolve())


BAD = {
    "targets that match nothing": (["adapter.targets=[q_prj]"], RecipeError, r"no linear layer is named q_prj.*q_proj"),
    "the output head": (["adapter.targets=[lm_head]"], RecipeError, "output head"),
    "sequences longer than the model reads": (["sequence_length=256"], PlanError, "above the 128 positions"),
    "a stop token that does not exist": (["sample.stop=[<|im_end|>]"], DataError, "im_end"),
    "missing columns": (["data.format=messages"], DataError, "instruction, output"),
    "a model that is nowhere": (["model=./nowhere"], PlanError, "nowhere"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_error_and_leaves_nothing_half_done(tuning: Tuning, what: str) -> None:
    changes, kind, message = BAD[what]

    with pytest.raises(BrimfulError, match=message) as caught:
        _train(tuning(*changes))
    assert isinstance(caught.value, kind)
    assert caught.value.exit_code == 2


def test_an_empty_answer_is_told_with_its_row(tuning: Tuning, examples_file: Path) -> None:
    with open(examples_file, "a") as file:
        file.write(json.dumps({"instruction": "Say nothing.", "output": " "}) + "\n")

    with pytest.raises(DataError, match=r"1 of 61 rows have an empty answer, the first is .*61"):
        _train(tuning())
