"""The largest micro-batch that a run meets is found by the trainer's own loader."""

from collections.abc import Iterator
from typing import Any

import datasets
import pytest
import torch
from fixture_types import Make, Refuses
from torch.utils.data import IterableDataset

from brimful.base.errors import PlanError
from brimful.integrations.hf_trainer.batches import longest_batch


def _met(trainer: Any, count: int) -> list[int]:
    """Elements of the micro-batches that a training would meet."""
    with torch.random.fork_rng():
        loader = iter(trainer.get_train_dataloader())
        return [next(loader)["input_ids"].numel() for _ in range(count)]


@pytest.mark.parametrize("kind", ["list", "columns"])
def test_it_is_the_largest_that_the_run_meets(make_trainer: Make, rows: Make, kind: str) -> None:
    data = rows(shortest=2)
    if kind == "columns":
        data = datasets.Dataset.from_list(data)
    trainer = make_trainer(train_dataset=data, max_steps=5)

    assert longest_batch(trainer, 4, 1)["input_ids"].numel() == max(_met(trainer, 5))


def test_another_micro_batch_and_a_whole_epoch_are_looked_at_as_they_would_be(
    make_trainer: Make, rows: Make
) -> None:
    trainer = make_trainer(train_dataset=rows(40, shortest=2), max_steps=-1, num_train_epochs=1)

    assert longest_batch(trainer, 8, 1)["input_ids"].shape == (8, 16)
    assert longest_batch(trainer, 40, 1)["labels"].shape == (40, 16)
    assert trainer.args.per_device_train_batch_size == 4


def test_random_states_are_left_as_they_were(make_trainer: Make) -> None:
    trainer, before = make_trainer(), torch.get_rng_state()
    longest_batch(trainer, 2, 2)

    assert torch.equal(torch.get_rng_state(), before)


class _Stream(IterableDataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        yield from self._rows


def test_of_a_stream_the_beginning_is_looked_at(make_trainer: Make, rows: Make) -> None:
    data = [*rows(8, shortest=2), *rows(4)]
    trainer = make_trainer(train_dataset=_Stream(data))

    assert longest_batch(trainer, 4, 1)["input_ids"].shape == (4, 16)


def test_a_loader_that_gives_rows_and_an_empty_one_are_refused(
    make_trainer: Make, refuses: Refuses
) -> None:
    trainer = make_trainer()
    trainer.data_collator = list
    with refuses(PlanError):
        longest_batch(trainer, 2, 1)
    with refuses(PlanError):
        longest_batch(make_trainer(train_dataset=_Stream([])), 2, 1)
