"""The widths of a network and what else shapes it, from the config of a published model.

Networks of one structure make the same tensors; every size is a product of widths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from brimful.base.arrays import Ints
from brimful.base.types import Counts, Json, JsonDict
from brimful.planning.family_key import SHORTEST, TILE, TraceFamilyKey
from brimful.planning.step import canonical

LETTERS = "hdengfv"
"""h hidden size, d head size, e the same rounded up to whole tiles of the flash kernel, n query
heads, g key/value heads, f width of the feed-forward layer, v entries of the vocabulary.
"""
LARGEST_HEAD, HEAD_STEP = 256, 8
"""Head sizes above the one, or that are no multiple of the other, run in other kernels on CUDA."""
SMALL_STATES = 4096
"""Tensors with fewer elements keep fp32 states in an 8-bit optimizer."""
DEGREE = 3
WEIGHTS = ("h", "dg", "dn", "hf", "hv", "hdg", "hdn")
"""Elements of weights, of which some share a scale."""

KEYS = {
    "h": "hidden_size",
    "d": "head_dim",
    "n": "num_attention_heads",
    "g": "num_key_value_heads",
    "f": "intermediate_size",
    "v": "vocab_size",
}
BLOCKS = "num_hidden_layers"
MODEL_TYPES = {
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "qwen3": True,
    "gemma2": True,
    "granite": False,
    "olmo2": False,
}
"""Model types whose widths are those of `KEYS`, and whether their head size is a value of its own
rather than the hidden size by the heads where it is left out.
"""
_WITH_VECTORS = {"qwen2", "olmo2"}
"""Model types with vectors as wide as all queries and all keys: biases, or norms."""
NOT_OF_THE_STEP = frozenset(
    {
        "_attn_implementation_autoset",
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "query_pre_attn_scalar",
        "return_dict",
        "rms_norm_eps",
        "rope_theta",
        "sep_token_id",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
"""Values that change no tensor's size and no operator of a training step."""
_PLAIN_POSITIONS = {"default", "linear", "llama3"}
"""Kinds of rotary positions that compute the same operators at every length."""
_OF_PLAIN_POSITIONS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
}


class NotOfItsKind(Exception):
    """The config is of no architecture whose widths are known."""


@dataclass(frozen=True)
class Monomial:
    """A product of widths, by a divisor, rounded up; both 1 for a constant.

    Attributes:
        letters: Letters of LETTERS, in their order.
        divisor: Number that it is divided by, above 1 where elements share a scale.
    """

    letters: str = ""
    divisor: int = 1

    def at(self, widths: "Widths") -> int:
        """Return its value."""
        product = 1
        for letter in self.letters:
            product *= widths.values[letter]
        return -(-product // self.divisor)


@dataclass(frozen=True)
class Widths:
    """The widths of a network.

    Attributes:
        values: Values by letter.
        blocks: Transformer blocks.
    """

    values: Counts
    blocks: int

    def of(self, monomials: tuple[Monomial, ...]) -> Ints:
        """Return the values of monomials."""
        return np.array([each.at(self) for each in monomials], np.int64)


@dataclass(frozen=True)
class SizedNetwork:
    """A network.

    Attributes:
        structure: What shapes it beside its widths, canonical JSON.
        widths: Its widths.
    """

    structure: str
    widths: Widths


def widths(h: int, d: int, n: int, g: int, f: int, v: int, blocks: int) -> Widths:
    """Return widths from those that a config names."""
    values = {"h": h, "d": d, "e": -(-d // TILE) * TILE, "n": n, "g": g, "f": f, "v": v}
    return Widths(values, blocks)


def values_of(sizes: Widths) -> Counts:
    """Return the values of a config with these widths."""
    return {key: sizes.values[letter] for letter, key in KEYS.items()} | {BLOCKS: sizes.blocks}


def monomials(letters: str, divisors: tuple[int, ...]) -> list[Monomial]:
    """Return the products of some of LETTERS that sizes can be, with the smallest divisors
    first.
    """
    products = [
        "".join(chosen)
        for degree in range(DEGREE + 1)
        for chosen in combinations(letters, degree)
        if not {"d", "e"} <= set(chosen) and not {"n", "g"} <= set(chosen)
    ]
    weights = [each for each in WEIGHTS if set(each) <= set(letters)]
    return [Monomial(each) for each in products] + [
        Monomial(each, divisor) for divisor in divisors for each in weights
    ]


def network_of(config: Json, defaults: Json, *, eight_bit: bool) -> SizedNetwork:
    """Return the network that a config describes.

    Args:
        config: Config with its model type.
        defaults: Values of the libraries for what it leaves out.
        eight_bit: The optimizer keeps small tensors' states as they are.

    Raises:
        NotOfItsKind: its widths are not known here, or such that other kernels run.
    """
    own_head = MODEL_TYPES.get(str(config.get("model_type")))
    if own_head is None:
        raise NotOfItsKind(str(config.get("model_type")))
    sizes = _widths_of(config, own_head=own_head)
    rest = {**defaults, **config}
    # How many positions there are limits the lengths that a family is for.
    for key in (*KEYS.values(), BLOCKS, "max_position_embeddings", *NOT_OF_THE_STEP):
        rest.pop(key, None)
    _drop_positions(rest)
    _drop_windows(rest)
    h, d, n, g = (sizes.values[letter] for letter in "hdng")
    rest["every head has keys of its own"] = n == g
    if eight_bit:
        vectors = (h, n * d, g * d) if rest["model_type"] in _WITH_VECTORS else (h,)
        rest["small states"] = [count < SMALL_STATES for count in vectors]
    return SizedNetwork(canonical(rest), sizes)


def serves(key: TraceFamilyKey) -> bool:
    """Return whether lengths of a family are below all limits of the network, as those of a family
    of every network are.
    """
    return key.lengths is None or key.lengths[0] == SHORTEST


def _widths_of(config: Json, *, own_head: bool) -> Widths:
    named = {letter: config.get(key) for letter, key in KEYS.items()}
    blocks, h, n = config.get(BLOCKS), named["h"], named["n"]
    if named["d"] is None and not own_head and h and n and h % n == 0:
        named["d"] = h // n
    if not all(type(value) is int and value > 1 for value in (*named.values(), blocks)):
        raise NotOfItsKind("a width is missing or a special case")
    found = widths(**named, blocks=blocks)  # type: ignore[arg-type]
    d = found.values["d"]
    if d > LARGEST_HEAD or d % HEAD_STEP:
        raise NotOfItsKind(f"head size {d}")
    return found


def _drop_positions(rest: JsonDict) -> None:
    """Take out how positions are rotated, where that changes no operator."""
    for key in ("rope_parameters", "rope_scaling"):
        values = rest.pop(key, None)
        if values is None:
            continue
        kind = values.get("rope_type", values.get("type")) if isinstance(values, Mapping) else ""
        if kind not in _PLAIN_POSITIONS or not values.keys() <= _OF_PLAIN_POSITIONS:
            raise NotOfItsKind(f"{key} {values}")


def _drop_windows(rest: JsonDict) -> None:
    """Take out the numbers of windows: which blocks have one, and that there is one, count."""
    if rest.get("use_sliding_window") is False:
        rest["sliding_window"] = None
        rest.pop("max_window_layers", None)
    if isinstance(rest.get("sliding_window"), int):
        rest["sliding_window"] = "above every length"
    kinds = rest.pop("layer_types", None)
    if kinds is None:
        return
    alternating = ["sliding_attention", "full_attention"] * len(kinds)
    expected = [kinds[0]] * len(kinds)
    if rest["model_type"] == "gemma2":
        expected = alternating[: len(kinds)]
    elif rest.get("sliding_window") is None:
        expected = ["full_attention"] * len(kinds)
    if list(kinds) != expected:
        raise NotOfItsKind("windows in other blocks")
