"""What tests of losses of answers compare with: log-probabilities from whole logits, gradients, and
TRL's trainers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_models import write_base_model
from torch import Tensor
from transformers import LlamaForCausalLM

from brimful.data.examples import ExampleSplit
from brimful.model.published import attach_adapters
from brimful.recipe import AdapterRecipe

RANK = 4
"""Of the adapters."""


def small_model(folder: Path, *, adapters_std: float | None, seed: int = 1) -> Any:
    """A small Llama in fp32.

    Args:
        folder: Where it is written.
        adapters_std: Standard deviation of the adapters' second matrices; None for no adapters.
        seed: Of these.
    """
    model = LlamaForCausalLM.from_pretrained(write_base_model(folder), dtype=torch.float32)
    if adapters_std is None:
        return model
    attach_adapters(model, AdapterRecipe(rank=RANK), seed=1)
    generator = torch.Generator().manual_seed(seed)
    for name, each in model.named_parameters():
        if "lora_B" in name:
            each.data.normal_(std=adapters_std, generator=generator)
    return model


def whole_log_probs(model: Any, split: ExampleSplit) -> tuple[Tensor, Tensor]:
    """Log-probability and tokens of each answer, from whole logits of one answer at a time."""
    log_probs, tokens = [], []
    for start, end in zip(split.offsets_E, split.offsets_E[1:], strict=False):
        ids = torch.from_numpy(split.tokens_N[start:end].astype(np.int64))
        is_target = torch.from_numpy(split.is_target_N[start:end])
        shares = model(input_ids=ids[None]).logits[0, :-1].double().log_softmax(-1)
        picked = shares.gather(1, ids[1:, None])[:, 0][is_target[1:]]
        log_probs.append(picked.sum())
        tokens.append(len(picked))
    return torch.stack(log_probs), torch.tensor(tokens, dtype=torch.float64)


def gradients_of(model: Any) -> dict[str, Tensor]:
    """Copies of the gradients that there are, by name."""
    found = {name: each.grad for name, each in model.named_parameters()}
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def trainer_of_trl(
    kind: str, model: Any, folder: Path, row: Mapping[str, Any], **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """A trainer of TRL's in doubles with the weights of a model, and its parameters by that model's
    names.

    Args:
        kind: DPO or KTO.
        folder: Where `small_model` wrote the base.
        row: Something that it takes for data; it is not trained on.
    """
    import datasets
    import peft
    import trl
    from transformers import AutoTokenizer

    adapters = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = getattr(trl, f"{kind}Trainer")(
        model=LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32),
        args=getattr(trl, f"{kind}Config")(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            report_to=[],
            gradient_checkpointing=False,
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=datasets.Dataset.from_list(
            [dict(row)] * settings["per_device_train_batch_size"]
        ),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=adapters,
    )
    trainer.model.double()
    trainer.model.train()
    theirs = {
        key.removeprefix("base_model.model."): each
        for key, each in trainer.model.named_parameters()
    }
    for key, each in model.named_parameters():
        theirs[key].data.copy_(each.data)
    return trainer, theirs
