"""What an atlas answers: models, methods, sequence lengths, effective batches, lengths of training
and devices.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brimful.base.discover import did_you_mean
from brimful.base.errors import RequestError
from brimful.faces.studio.templates import Method
from brimful.hardware import catalog as device_catalog
from brimful.model import catalog as model_catalog
from brimful.planning.specs import ModelFacts, facts_of_values

MODELS = (
    "google/gemma-2-2b",
    "HuggingFaceTB/SmolLM2-135M",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-7B",
)
"""Well-known ones of several sizes, whose steps come recorded."""
METHODS: tuple[Method, ...] = ("lora", "qlora", "full")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""In tokens; those above a model's context are left out."""
BATCHES = (8, 16, 64)
"""Sequences per optimizer step."""
TOKENS = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
"""To train on. What pays, such as compiling, depends on it."""


class Question(NamedTuple):
    """One table of the atlas: what is trained, for every device."""

    model: str
    method: Method
    length: int
    batch: int
    tokens: int


@dataclass(frozen=True)
class Scope:
    """What an atlas answers.

    Attributes:
        models: Names from the catalog of models.
        methods: What is trained of each.
        lengths: Lengths of sequences, in tokens.
        batches: Effective batches, in sequences.
        tokens: Number of tokens to train on.
        devices: Exact names from the catalog of devices.
    """

    models: tuple[str, ...]
    methods: tuple[Method, ...] = METHODS
    lengths: tuple[int, ...] = LENGTHS
    batches: tuple[int, ...] = BATCHES
    tokens: tuple[int, ...] = TOKENS
    devices: tuple[str, ...] = ()

    def lengths_of(self, model: str) -> tuple[int, ...]:
        """Return the lengths within a model's context, in ascending order."""
        context = _facts(model).context
        return tuple(
            length for length in sorted(self.lengths) if context is None or length <= context
        )

    def questions(self, model: str, method: Method) -> Iterator[Question]:
        """Go through the tables of a model and a method, the shortest sequences first."""
        for length in self.lengths_of(model):
            for batch in sorted(self.batches):
                for tokens in sorted(self.tokens):
                    yield Question(model, method, length, batch, tokens)

    @property
    def size(self) -> int:
        """How many tables there are."""
        num_lengths = sum(len(self.lengths_of(model)) for model in self.models)
        return num_lengths * len(self.methods) * len(self.batches) * len(self.tokens)


def scope_of(
    *,
    models: Sequence[str] = (),
    methods: Sequence[str] = (),
    lengths: Sequence[int] = (),
    batches: Sequence[int] = (),
    tokens: Sequence[int] = (),
    devices: Sequence[str] = (),
) -> Scope:
    """Return a checked scope; what is empty takes its default: MODELS, and every device of the
    catalog.

    Raises:
        RequestError: no such model or method, or a number that is none.
        DeviceError: no such device.
    """
    for name, numbers, least in (
        ("length", lengths, 2),
        ("batch", batches, 1),
        ("tokens", tokens, 1),
    ):
        wrong = next((number for number in numbers if number < least), None)
        if wrong is not None:
            raise RequestError(f"{name} {wrong} must be a whole number of at least {least}.")
    scope = Scope(
        models=tuple(dict.fromkeys(_row(name).name for name in models)) or MODELS,
        methods=tuple(dict.fromkeys(map(_method, methods))) or METHODS,
        lengths=tuple(dict.fromkeys(lengths)) or LENGTHS,
        batches=tuple(dict.fromkeys(batches)) or BATCHES,
        tokens=tuple(dict.fromkeys(tokens)) or TOKENS,
        devices=(
            tuple(dict.fromkeys(device_catalog.get(name).name for name in devices))
            or tuple(device_catalog.names())
        ),
    )
    for model in scope.models:
        if not scope.lengths_of(model):
            raise RequestError(
                f"{model} has a context of {_facts(model).context} tokens, less than every length"
                " asked for. Add a shorter one."
            )
    return scope


def _method(name: str) -> Method:
    known: dict[str, Method] = {each: each for each in METHODS}
    if name.lower() not in known:
        raise RequestError(f"method {name!r} must be one of {', '.join(METHODS)}.")
    return known[name.lower()]


@functools.cache
def _facts(model: str) -> ModelFacts:
    row = _row(model)
    return facts_of_values(row.config, row.parameters)


def _row(model: str) -> model_catalog.ModelRow:
    """Return the row of a hub id, or of the only one that ends with this name."""
    ending = [name for name in model_catalog.names() if name.lower().endswith(f"/{model.lower()}")]
    row = model_catalog.find(ending[0] if len(ending) == 1 else model)
    if row is None:
        raise RequestError(
            f"no model {model!r} in the catalog{did_you_mean(model, model_catalog.names())}"
            " `brimful models` lists them."
        )
    return row
