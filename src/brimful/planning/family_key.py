"""Which steps share one family of traces: those that differ in sequence length, rank and widths of
the network, those of a model in parts also in the number of devices; at least all micro-batches.

A tensor's bytes are a product of its dimensions, and each dimension is a constant, a width, the
micro-batch, the sequence length, the rank, or what a piece of the loss holds.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.model.description import OWN_TYPES
from brimful.planning.step import ANY_NUMBER, EVALUATION_FACTOR, Lora, StepSpec, canonical

GRANULE = 128
"""Attention kernels round rows up to this or to TILE (rehearsal.kernels)."""
TILE = 32
CHUNKS = {"K": 64, "Q": 256, "S": 2048}
"""Positions of a chunk of the delta rules, of a scan of Mamba-2, and of one of Mamba."""
SHORTEST = 32
"""Shorter sequences have no family."""
LONGEST = 131_072
PRODUCTS = (
    *(
        rank + rest
        for rank in ("", "r")
        for rest in ("", "B", "T", "BT", "TT", "BTT", "U", "BU", "V", "C", "L", "M", "BM")
    ),
    "TU",
    "BTU",
    "G",
    "BG",
    "E",
    "BE",
    "K",
    "BK",
    "Q",
    "BQ",
    "S",
    "BS",
    "P",
    "rP",
    "A",
    "RA",
)
"""B is the micro-batch and T the sequence length. U is T + 1, as of attention scores with a column
for a sink, and V is T - B. G and E are T rounded up to GRANULE and to TILE; K, Q and S are the
numbers of CHUNKS in it. r is the rank, M the scored tokens of a sequence, C the tokens of a full
piece of the loss and L those of the last one. Of a model in parts: R is the number of devices; P
the rows of a weight that one of them holds, in the unit of which every weight has whole numbers; A
the rows that it holds of an adapter's first matrix, which has r of them, perhaps fewer than R.
"""
SUMS_IN_PARTS = (("P", "rP", "A"), ("", "r", "RA"))
"""What FSDP2 sends and receives is a sum over the weights of a block: of their parts, or of the
whole.
"""
_WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention")
_LENGTH_INDEPENDENT = {"sdpa", "eager", "brimful_expanded"}
"""Attention that makes the same tensors at every length; the others split it into blocks."""


@dataclass(frozen=True)
class StepSize:
    """The dimensions in which the members of a family differ.

    Attributes:
        micro_batch, sequence_length, rank: Sizes of the step; the rank is 1 without adapters.
        scored: Tokens of a sequence that the pieces of the loss are made of.
        chunk: Tokens of a full piece of the loss.
        ranks: Devices among which the model is divided.
        part: Rows that each of them holds of a weight with the fewest rows that are possible.
    """

    micro_batch: int
    sequence_length: int
    rank: int
    scored: int
    chunk: int
    ranks: int = 1
    part: int = 1

    def product(self, name: str) -> int:
        """The value of one of PRODUCTS."""
        values = {
            "B": self.micro_batch,
            "T": self.sequence_length,
            "U": self.sequence_length + 1,
            "V": self.sequence_length - self.micro_batch,
            "r": self.rank,
            "G": -(-self.sequence_length // GRANULE) * GRANULE,
            "E": -(-self.sequence_length // TILE) * TILE,
            **{name: -(-self.sequence_length // each) for name, each in CHUNKS.items()},
            "M": self.scored,
            "C": self.chunk,
            "R": self.ranks,
            "P": self.part,
            "A": -(-self.rank // self.ranks),
        }
        values["L"] = self.micro_batch * self.scored - self.chunk
        return int(np.prod([values[letter] for letter in name], dtype=object))


@dataclass(frozen=True)
class TraceFamilyKey:
    """The key of a family of steps.

    Attributes:
        spec: The step that the members share, with 0 for a length, rank or piece of the loss that
            varies.
        lengths: The shortest and the longest sequence length; None where the length is fixed.
        follows: The config key of the number of positions, where that is the sequence length; else
            empty.
        is_single: The family is of micro-batches of one sequence, which may be a special case;
            else of all micro-batches.
        any_width: The family is of all networks of a structure, which stands in place of the
            config.
        micro_batch: The only one; 0 where it varies.
    """

    spec: StepSpec
    lengths: tuple[int, int] | None = None
    follows: str = ""
    is_single: bool = False
    any_width: bool = False
    micro_batch: int = 0

    @property
    def has_rank(self) -> bool:
        """Return whether the rank of adapters varies."""
        return isinstance(self.spec.adapter, Lora) and not self.spec.adapter.rank

    @property
    def in_parts(self) -> bool:
        """Return whether the model lies in parts on any number of devices."""
        return self.spec.ranks == ANY_NUMBER

    @property
    def is_alone(self) -> bool:
        """Return whether at most the micro-batch varies."""
        return self.lengths is None and not self.has_rank

    @property
    def sums(self) -> tuple[tuple[str, ...], ...]:
        """Return the products of which a size can be a sum."""
        if self.in_parts:
            return SUMS_IN_PARTS if self.has_rank else ()
        if not self.is_alone or self.micro_batch:
            return ()
        return (("", "B", "C"),) if self.spec.loss == "chunked" else (("", "B"),)

    @cached_property
    def products(self) -> tuple[str, ...]:
        """Return those of PRODUCTS that a size in this family can be."""
        chunked = self.spec.loss == "chunked"
        absent = set()
        if self.lengths is None:
            absent |= set("TUVMGE")
        elif self.spec.scored_tokens == self.spec.sequence_length:
            absent.add("M")
        if self.lengths is None or not self.spec.kernels:
            absent |= CHUNKS.keys()
        if not self.in_parts:
            absent |= set("PAR")
        if not self.has_rank:
            absent |= set("rA")
        if not chunked or self.micro_batch:
            absent |= set("CL")
        if self.is_single or self.micro_batch:
            absent.add("B")
        return tuple(
            name for name in PRODUCTS if not set(name) & absent and self._may_have_one_more(name)
        )

    def _may_have_one_more(self, name: str) -> bool:
        if "TU" in name:
            return self.spec.attention == "eager"
        return self.is_single or name.strip("r") != "U"

    @property
    def evaluation_factors(self) -> tuple[int, int]:
        """Return how many times as many sequences a recorded evaluation batch has, and how many
        times as large pieces of the loss.
        """
        if self.micro_batch:
            return EVALUATION_FACTOR, 1
        return (EVALUATION_FACTOR, EVALUATION_FACTOR) if self.is_single else (1, 1)

    def evaluated(self, size: StepSize) -> StepSize:
        """Return the size of a recording's evaluation batch."""
        sequences, pieces = self.evaluation_factors
        return dataclasses.replace(
            size, micro_batch=sequences * size.micro_batch, chunk=pieces * size.chunk
        )

    def member(self, size: StepSize) -> StepSpec:
        """Return the member of the family with this size."""
        spec = dataclasses.replace(self.spec, loss_chunk=size.chunk)
        if self.in_parts:
            spec = dataclasses.replace(spec, ranks=size.ranks)
        if self.has_rank and isinstance(spec.adapter, Lora):
            spec = dataclasses.replace(
                spec, adapter=dataclasses.replace(spec.adapter, rank=size.rank)
            )
        if self.lengths is None:
            return spec
        return _with_length(spec, size.sequence_length, self.follows)


def family_keys_of(spec: StepSpec) -> list[TraceFamilyKey]:
    """Return the families that a step may belong to, the widest first. The last one is of its
    micro-batches only.
    """
    keys = [TraceFamilyKey(dataclasses.replace(spec, loss_chunk=0))]
    if _is_alone(spec):
        return keys
    ranks = ANY_NUMBER if spec.ranks > 1 else 1
    shared = dataclasses.replace(spec, loss_chunk=0, ranks=ranks)
    if isinstance(spec.adapter, Lora):
        shared = dataclasses.replace(shared, adapter=dataclasses.replace(spec.adapter, rank=0))
        keys.insert(0, TraceFamilyKey(shared))
    length, config = spec.sequence_length, spec.config
    if (
        length < SHORTEST
        or spec.attention not in _LENGTH_INDEPENDENT
        or config.get("model_type") in OWN_TYPES
        or spec.cuts_gradients
    ):
        return keys
    follows = next(
        (key for key in ("n_positions", "max_position_embeddings") if config.get(key) == length), ""
    )
    if follows and spec.ranks > 1:
        return keys  # what is learned of positions is divided, too
    low, high = _range(spec, follows)
    if low < high:
        keys.insert(0, TraceFamilyKey(_with_length(shared, 0, follows), (low, high), follows))
    return keys


def _is_alone(spec: StepSpec) -> bool:
    """Return whether no other step shares this one's recordings."""
    if spec.compiled != "none" or spec.recompute == "selective" or type(spec) is not StepSpec:
        return True  # what the compiler fuses, or a block keeps, may depend on sizes
    return spec.adapter is not None and (
        not isinstance(spec.adapter, Lora) or spec.adapter.rank == 1 or spec.adapter.tokens > 0
    )


def _range(spec: StepSpec, follows: str) -> tuple[int, int]:
    """Return the shortest and the longest length around a step's at which the network computes the
    same way. Scaled positions begin beyond a length that
    the config names; attention windows at that length, where the mask is made.
    """
    config, length = spec.config, spec.sequence_length
    scaling = [config.get(key) for key in ("rope_scaling", "rope_parameters")]
    values = [
        each.get("original_max_position_embeddings") for each in scaling if isinstance(each, dict)
    ]
    if not follows:
        keys = ("max_position_embeddings", "n_positions", "max_seq_len")
        values += [config.get(key) for key in keys]
    limits = [value for value in values if isinstance(value, int) and value > 0]
    windows = [config.get(key) for key in _WINDOWS]
    limits += [value - 1 for value in windows if isinstance(value, int) and value > 0]
    above = min((limit for limit in limits if limit >= length), default=LONGEST)
    below = max((limit for limit in limits if limit < length), default=0)
    return max(below + 1, SHORTEST), min(above, LONGEST)


def _with_length(spec: StepSpec, length: int, follows: str) -> StepSpec:
    if follows:
        spec = dataclasses.replace(spec, config_json=canonical({**spec.config, follows: length}))
    return dataclasses.replace(spec, sequence_length=length)
