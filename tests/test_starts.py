"""Runs that start from what other programs trained: PEFT's adapters, a Trainer's checkpoint."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from brimful.base.errors import PlanError, RecipeError, RunFolderError
from brimful.base.rundir import read_journal
from brimful.base.types import JsonDict
from brimful.chains import pipeline
from brimful.generation.load import load_run, load_untuned
from brimful.model.published import attach_adapters
from brimful.recipe import AdapterRecipe, Recipe

CPU = torch.device("cpu")
IDS_BT = torch.arange(2, 42)[None]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(input_ids=IDS_BT).logits[0]
    return logits


def trained_adapters(base: Path, folder: Path, **settings: Any) -> Path:
    """Adapters as PEFT saves them, with weights that change the model."""
    model = AutoModelForCausalLM.from_pretrained(base)
    values = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]} | settings
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **values))
    generator = torch.Generator().manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    adapted.save_pretrained(folder)
    return folder


def train(recipe: Recipe) -> tuple[Path, str]:
    shown = StringIO()
    folder = pipeline.train(recipe, Console(file=shown, width=1000)).folder
    return folder, shown.getvalue()


@pytest.mark.parametrize("settings", [{}, {"use_dora": True, "use_rslora": True}])
def test_pefts_adapters_are_gone_on_with_from_exactly_where_they_are(
    tuning: MakeRecipe, base_model: Path, tmp_path: Path, settings: JsonDict
) -> None:
    adapters = trained_adapters(base_model, tmp_path / "adapters", **settings)
    recipe = tuning(f"model={adapters}", "adapter=null", "training.steps=4")
    folder, _ = train(recipe)

    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_model), adapters)
    assert torch.equal(logits_of(load_untuned(folder, CPU).model), logits_of(theirs))
    assert not torch.equal(logits_of(load_run(folder, CPU, torch.float32).model), logits_of(theirs))
    before = [
        record["loss"]
        for record in read_journal(folder / "metrics.jsonl")
        if record["kind"] == "base" and record.get("model") == "base"
    ]
    plain, _ = train(tuning("run.name=plain", "training.steps=4"))
    of_base = [
        record["loss"]
        for record in read_journal(plain / "metrics.jsonl")
        if record["kind"] == "base" and record.get("model") == "base"
    ]
    assert before != of_base, "the start is the adapted model, not its base"


def test_a_run_goes_on_with_the_adapters_of_another_run(
    tuning: MakeRecipe, refuses: Refuses
) -> None:
    first, _ = train(tuning("run.name=first", "training.steps=4"))
    second, _ = train(
        tuning("run.name=second", "training.steps=4", f"model={first / 'model'}", "adapter=null")
    )
    assert torch.equal(
        logits_of(load_untuned(second, CPU).model),
        logits_of(load_run(first, CPU, torch.float32).model),
    )
    (first / "model" / "adapter_model.safetensors").write_bytes(b"changed")
    with refuses(RunFolderError):
        load_untuned(second, CPU)


def test_adapters_that_do_not_fit_are_refused(base_model: Path, tmp_path: Path) -> None:
    adapters = trained_adapters(base_model, tmp_path / "adapters")
    model = AutoModelForCausalLM.from_pretrained(base_model)
    with pytest.raises(RecipeError, match=r"adapter.rank: 8, but the adapters in .* have 4"):
        attach_adapters(model, AdapterRecipe(rank=8, start=str(adapters)), seed=1)

    config = (adapters / "adapter_config.json").read_text()
    (adapters / "adapter_config.json").write_text(config.replace('"r": 4', '"r": 8'))
    own = AdapterRecipe(rank=8, alpha=8.0, targets=["q_proj", "down_proj"], start=str(adapters))
    with pytest.raises(PlanError, match="do not belong to the model"):
        attach_adapters(AutoModelForCausalLM.from_pretrained(base_model), own, seed=1)


class Ids(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": IDS_BT[0], "labels": IDS_BT[0]}


def checkpoint_of_trainer(model: Any, base: Path, folder: Path) -> Path:
    """The folder that a real Trainer writes after one step."""
    arguments = TrainingArguments(
        str(folder), max_steps=1, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    tokenizer = AutoTokenizer.from_pretrained(base)
    trainer = Trainer(model, arguments, train_dataset=Ids(), processing_class=tokenizer)
    trainer.train()
    return folder / "checkpoint-1"


def test_a_trainers_checkpoint_starts_a_run_and_says_what_is_not_read(
    tuning: MakeRecipe, base_model: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(base_model)
    checkpoint = checkpoint_of_trainer(model, base_model, tmp_path / "trainer")
    assert (checkpoint / "optimizer.pt").exists()
    recipe = tuning(f"model={checkpoint}", "adapter=null", "training.steps=2")
    folder, shown = train(recipe)

    assert f"{checkpoint} is a checkpoint of a Trainer at its step 1." in shown
    assert "optimizer.pt" in shown
    assert torch.equal(logits_of(load_untuned(folder, CPU).model), logits_of(model))


def test_a_trainers_checkpoint_of_adapters_is_gone_on_with(
    tuning: MakeRecipe, base_model: Path, tmp_path: Path
) -> None:
    adapters = trained_adapters(base_model, tmp_path / "adapters")
    base = AutoModelForCausalLM.from_pretrained(base_model)
    model = PeftModel.from_pretrained(base, adapters, is_trainable=True)
    checkpoint = checkpoint_of_trainer(model, base_model, tmp_path / "trainer")
    recipe = tuning(f"model={checkpoint}", "adapter=null", "training.steps=2")
    folder, shown = train(recipe)

    assert "is a checkpoint of a Trainer at its step 1." in shown
    assert torch.equal(logits_of(load_untuned(folder, CPU).model), logits_of(model))
