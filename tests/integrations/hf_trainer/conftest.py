"""A Trainer small enough to train in a tenth of a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from brimful.base.types import JsonDict

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _small_model(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL | changes))


def _rows(count: int = 96, shortest: int = 16) -> list[JsonDict]:
    drawn = torch.Generator().manual_seed(0)
    sizes = torch.randint(shortest, 17, (count,), generator=drawn).tolist()
    ids = [torch.randint(3, 64, (size,), generator=drawn).tolist() for size in sizes]
    return [{"input_ids": each, "labels": each} for each in ids]


def _padded(of: list[JsonDict]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in of)

    def column(name: str, fill: int) -> Tensor:
        return torch.tensor([row[name] + [fill] * (longest - len(row[name])) for row in of])

    ids = column("input_ids", 0)
    return {"input_ids": ids, "attention_mask": ids.ne(0), "labels": column("labels", -100)}


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """`make_trainer(model, rows, per_device_train_batch_size=4, ...)`, on the CPU."""

    def make(
        model: Any = None, train_dataset: Any = "rows", options: Any = None, **values: Any
    ) -> Trainer:
        settings = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "max_steps": 3,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_strategy": "no",
        }
        return Trainer(
            model=model or _small_model(),
            args=TrainingArguments(**settings | values),
            train_dataset=_rows() if train_dataset == "rows" else train_dataset,
            data_collator=_padded,
            **options or {},
        )

    return make


@pytest.fixture
def small_model() -> Callable[..., LlamaForCausalLM]:
    """`small_model(hidden_size=64)`: the same random weights each time."""
    return _small_model


@pytest.fixture
def rows() -> Callable[..., list[JsonDict]]:
    """`rows(count, shortest)`: tokens and labels of 16 or fewer positions."""
    return _rows


@pytest.fixture
def padded() -> Callable[[list[JsonDict]], dict[str, Tensor]]:
    """A collator that pads to the longest row."""
    return _padded
