"""Steps that differ in sequence length and rank only, and what their sizes can be.

A tensor's bytes are a product of its dimensions, and each dimension is a constant, the micro-batch,
the sequence length, the rank, or what a piece of the loss holds.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from brimful.planning.step import EVALUATION_FACTOR, Lora, StepSpec, canonical

GRANULE = 128
"""Sequence lengths are multiples of this: attention kernels round rows up to it
(rehearsal.kernels), so other lengths are no products.
"""
LONGEST = 131_072
PRODUCTS = tuple(
    rank + rest
    for rank in ("", "r")
    for rest in ("", "B", "T", "BT", "TT", "BTT", "U", "BU", "V", "C", "L", "M", "BM")
)
"""B micro-batch, T sequence length, U one more, V less the micro-batch, r rank, M scored tokens of
a sequence, C tokens of a full piece of the loss, L of the last one.
"""
_LOOKS_AWAY = {"sdpa", "eager", "brimful_expanded"}
"""Attention that makes the same tensors at every length; others work in blocks of it."""


@dataclass(frozen=True)
class Point:
    """What differs between the recordings of a family.

    Attributes:
        micro_batch, sequence_length, rank: As in the step; the rank is 1 where there are no
            adapters.
        scored: Tokens of a sequence that the pieces of the loss are made of.
        chunk: Tokens of a full piece of the loss.
    """

    micro_batch: int
    sequence_length: int
    rank: int
    scored: int
    chunk: int

    def product(self, name: str) -> int:
        """The value of one of PRODUCTS."""
        values = {
            "B": self.micro_batch,
            "T": self.sequence_length,
            "U": self.sequence_length + 1,
            "V": self.sequence_length - self.micro_batch,
            "r": self.rank,
            "M": self.scored,
            "C": self.chunk,
        }
        values["L"] = self.micro_batch * self.scored - self.chunk
        return int(np.prod([values[letter] for letter in name], dtype=object))

    def evaluation(self, factor: int) -> "Point":
        """What an evaluation batch of `factor` times as many sequences is made of, its pieces of
        the loss as much larger.
        """
        return dataclasses.replace(
            self, micro_batch=factor * self.micro_batch, chunk=factor * self.chunk
        )


@dataclass(frozen=True)
class Kin:
    """Steps that differ in sequence length and rank only.

    Attributes:
        spec: What they share; lengths and ranks that differ are 0 in it.
        lengths: The shortest and the longest, multiples of GRANULE; None where they have one
            length.
        follows: The model has as many positions as a sequence.
        is_single: One sequence at a time, where that makes other events than more of them; else any
            micro-batch.
    """

    spec: StepSpec
    lengths: tuple[int, int] | None
    follows: str = ""
    is_single: bool = False

    @property
    def has_rank(self) -> bool:
        return isinstance(self.spec.adapter, Lora)

    @property
    def products(self) -> tuple[str, ...]:
        """Those of PRODUCTS that a size can be."""
        chunked = self.spec.loss == "chunked"
        absent = set(
            "TUVM"
            if self.lengths is None
            else ""
            if chunked and self.spec.task == "masked_lm"
            else "M"
        )
        absent |= set(
            ("" if self.has_rank else "r")
            + ("" if chunked else "CL")
            + ("B" if self.is_single else "")
        )
        return tuple(
            name
            for name in PRODUCTS
            if not set(name) & absent and (self.is_single or name.strip("r") != "U")
        )

    @property
    def evaluation_factor(self) -> int:
        """Sequences of a recording's evaluation batch for each of its micro-batch."""
        return EVALUATION_FACTOR if self.is_single else 1

    def member(self, point: Point) -> StepSpec:
        """The step at a point."""
        adapter = (
            dataclasses.replace(self.spec.adapter, rank=point.rank)
            if isinstance(self.spec.adapter, Lora)
            else self.spec.adapter
        )
        spec = dataclasses.replace(self.spec, adapter=adapter, loss_chunk=point.chunk)
        return (
            spec
            if self.lengths is None
            else _with_length(spec, point.sequence_length, self.follows)
        )


def kin_of(spec: StepSpec) -> list[Kin]:
    """Families a step may belong to, the widest first; none where nothing of it can differ."""
    if spec.adapter is not None and (not isinstance(spec.adapter, Lora) or spec.adapter.rank == 1):
        return []
    shared = dataclasses.replace(spec, loss_chunk=0)
    kin = []
    if isinstance(spec.adapter, Lora):
        shared = dataclasses.replace(shared, adapter=dataclasses.replace(spec.adapter, rank=0))
        kin.append(Kin(shared, None))
    length, config = spec.sequence_length, spec.config
    if (
        length % GRANULE
        or spec.attention not in _LOOKS_AWAY
        or config.get("model_type") == "okadfa"
        or spec.feedback
    ):
        return kin
    follows = next(
        (key for key in ("n_positions", "max_position_embeddings") if config.get(key) == length), ""
    )
    low, high = _range(spec, follows)
    if low < high:
        kin.insert(0, Kin(_with_length(shared, 0, follows), (low, high), follows))
    return kin


def _range(spec: StepSpec, follows: str) -> tuple[int, int]:
    """Lengths around a spec's between which the network does nothing else: windows and stretched
    positions begin at lengths that the config names.
    """
    config, length = spec.config, spec.sequence_length
    nested = [
        value
        for key in ("rope_scaling", "rope_parameters")
        if isinstance(value := config.get(key), dict)
    ]
    found = [
        config.get(key) for key in ("sliding_window", "attention_chunk_size", "local_attention")
    ]
    found += [each.get("original_max_position_embeddings") for each in nested]
    limits = sorted(value for value in found if isinstance(value, int) and value > 0)
    if not follows:
        limits += [
            value
            for key in ("max_position_embeddings", "n_positions", "max_seq_len")
            if isinstance(value := config.get(key), int)
        ]
    above = min((limit for limit in limits if limit >= length), default=LONGEST)
    below = max((limit for limit in limits if limit < length), default=0)
    return (below // GRANULE + 1) * GRANULE, min(above, LONGEST) // GRANULE * GRANULE


def _with_length(spec: StepSpec, length: int, follows: str) -> StepSpec:
    if follows:
        spec = dataclasses.replace(spec, config_json=canonical({**spec.config, follows: length}))
    return dataclasses.replace(spec, sequence_length=length)
