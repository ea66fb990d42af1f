"""The micro-batch of a training that needs most memory: the trainer's own loader and collator, with
rows in the order in which the run takes them.
"""

import copy
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from brimful.base.errors import PlanError
from brimful.integrations.hf_trainer.rehearsed import Batch

MOST_ROWS = 100_000
"""Rows of the run's beginning among which the longest micro-batch is looked for."""
MOST_ROWS_READ = 2_000
"""The same where every row has to be made to know its length."""
MOST_BATCHES_READ = 8
"""Micro-batches of a stream that are looked at."""
CANDIDATES = 3
"""Micro-batches that are collated to find the largest, by either measure of length."""


def longest_batch(trainer: Any, micro_batch: int, passes: int) -> Batch:
    """Return the largest micro-batch of so many rows that the run meets, as far as it can be known
    before; with values. Random states are left as they were.

    Raises:
        PlanError: the loader gives no tensors by name.
    """
    with _random_states_kept():
        loader = _loader(trainer, micro_batch, passes)
        indices = _indices(trainer, loader, micro_batch, passes)
        if indices is None:
            batches = _first(loader)
        else:
            chosen = _longest(indices, loader.dataset)
            batches = [loader.collate_fn([loader.dataset[row] for row in rows]) for rows in chosen]
    for batch in batches:
        if not isinstance(batch, Mapping) or not any(
            isinstance(value, Tensor) for value in batch.values()
        ):
            raise PlanError(
                f"{type(trainer).__name__} gets rows and not tensors from its loader, because it"
                " makes its inputs within the step (it generates): that cannot be traced."
                " BrimfulCallback measures it as it is."
            )
    if not batches:
        raise PlanError("the train dataset gives no batch: it has no rows.")
    return max(batches, key=_num_bytes)


def _first(loader: Any) -> list[Any]:
    try:
        return list(itertools.islice(loader, MOST_BATCHES_READ))
    except ValueError as error:  # of accelerate, where a stream is empty
        raise PlanError(f"the train dataset gives no batch: {error}") from error


def _loader(trainer: Any, micro_batch: int, passes: int) -> Any:
    """Return the loader that the trainer would make for this micro-batch."""
    other = copy.copy(trainer)
    other.args = copy.copy(trainer.args)
    other.args.per_device_train_batch_size = micro_batch
    other.args.gradient_accumulation_steps = passes
    other._train_batch_size = micro_batch
    other.accelerator = copy.copy(trainer.accelerator)
    other.accelerator._dataloaders = []
    return other.get_train_dataloader()


def _indices(
    trainer: Any, loader: Any, micro_batch: int, passes: int
) -> list[Sequence[int]] | None:
    """Return the rows of the run's micro-batches; None where the dataset is a stream."""
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None or isinstance(loader.dataset, IterableDataset):
        return None
    most = MOST_ROWS if _has_columns(loader.dataset) else MOST_ROWS_READ
    count = max(1, most // micro_batch)
    if trainer.args.max_steps > 0:
        count = min(count, trainer.args.max_steps * passes)
    return list(itertools.islice(sampler, count))


def _longest(indices: Sequence[Sequence[int]], dataset: Any) -> list[Sequence[int]]:
    """Return the likeliest largest ones: by the longest row, as padding makes them, and by the sum
    of all rows, as packing does.
    """
    lengths = _lengths(dataset, sorted({row for rows in indices for row in rows}))

    def padded(rows: Sequence[int]) -> int:
        return len(rows) * max(lengths[row] for row in rows)

    def packed(rows: Sequence[int]) -> int:
        return sum(lengths[row] for row in rows)

    found: list[Sequence[int]] = []
    for measure in (padded, packed):
        found += [
            rows
            for rows in sorted(indices, key=measure, reverse=True)[:CANDIDATES]
            if rows not in found
        ]
    return found


def _has_columns(dataset: Any) -> bool:
    return hasattr(dataset, "with_format") and hasattr(dataset, "column_names")


def _lengths(dataset: Any, rows: Sequence[int]) -> Mapping[int, int]:
    """Return the number of elements of each row."""
    if not _has_columns(dataset):
        return {row: _length(dataset[row]) for row in rows}
    import pyarrow as pa  # noqa: PLC0415 - only for datasets with columns
    import pyarrow.compute as pc  # noqa: PLC0415

    table = dataset.with_format("arrow")[:]
    total_N = np.zeros(len(dataset), np.int64)
    for column in table.columns:
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            total_N += pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            total_N += pc.fill_null(pc.utf8_length(column), 0).to_numpy()
    return dict(zip(rows, total_N[list(rows)].tolist(), strict=True))


def _length(row: Any) -> int:
    values = row.values() if isinstance(row, Mapping) else [row]
    return sum(
        value.numel()
        if isinstance(value, Tensor)
        else len(value)
        if hasattr(value, "__len__")
        else 1
        for value in values
    )


def _num_bytes(batch: Batch) -> int:
    return sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))


@contextmanager
def _random_states_kept() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
