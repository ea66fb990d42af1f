"""Memory, parameter and time claims of the five guides beside what brimful plans or counts for the
same settings: what the page `pages/guides.md.j2` asks for.

    python benchmarks/guides.py > docs/guides.md

Traces are kept in brimful's cache folder; the first run makes about fifteen of them, which takes
some minutes.
"""

import dataclasses
import functools
from typing import Any

import tables
from brimful.base.env import cache_folder
from brimful.base.units import GIB, format_bytes, format_count, format_duration
from brimful.chains.devices import rates_of
from brimful.hardware import catalog as devices
from brimful.model import catalog as models
from brimful.model.description import config_values
from brimful.planning.longest_pass import split
from brimful.planning.memory import Footprint
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.survey import Memory
from brimful.planning.target import target_of
from brimful.planning.timing import step_time
from brimful.recipe import ModelRecipe
from brimful.rehearsal.models import config_of, count_parameters, meta_model
from brimful.rehearsal.store import StoredTraces

MASK_POSITIONS = 2048
"""Rows of the causal mask that every block of tiny_gpt keeps, whatever its context."""


def published(name: str, **options: Any) -> StepSpec:
    """Return the step of a model of the catalog."""
    row = models.find(name)
    assert row is not None, name
    return StepSpec(config_json=canonical(row.config), **options)


def gpt(
    layers: int,
    heads: int,
    width: int,
    inner: int,
    *,
    vocabulary: int,
    context: int,
    tied: bool,
    **options: Any,
) -> StepSpec:
    """Return the step of a GPT-2 of some shape."""
    recipe = ModelRecipe(
        architecture="gpt2",
        layers=layers,
        heads=heads,
        width=width,
        mlp_width=inner,
        dropout=0.1,
        tie_embeddings=tied,
    )
    config = config_values(recipe, vocabulary=vocabulary, context=context)
    return StepSpec(config_json=canonical(config), sequence_length=context, **options)


def known_parameters(name: str) -> int:
    """Return how many parameters the catalog says a model has."""
    row = models.find(name)
    assert row is not None, name
    return row.parameters


@functools.cache
def _traces(spec: StepSpec) -> StoredTraces:
    return StoredTraces(spec, cache_folder() / "traces")


@functools.cache
def _memory(spec: StepSpec, device: str) -> Memory:
    return Memory(_traces(spec), target_of(devices.get(device)))


def plan(spec: StepSpec, device: str, micro_batch: int) -> Footprint:
    """Return what a micro-batch takes."""
    return _memory(spec, device).at(micro_batch)


def largest(spec: StepSpec, device: str, most: int) -> int:
    """Return the largest micro-batch that fits."""
    return _memory(spec, device).largest(most)


def step_s(spec: StepSpec, device: str, sequences: int, micro_batch: int) -> float:
    """Return the seconds of an optimizer step over so many sequences."""
    rates = rates_of(devices.get(device))
    assert rates is not None, device
    shares = split(sequences, micro_batch)
    return step_time(_traces(spec).work_at, shares, rates, precision=spec.products).seconds


def in_all(footprint: Footprint) -> str:
    """Return what the driver shows, and what tensors take."""
    return (
        f"{format_bytes(footprint.driver.value)} in all, {format_bytes(footprint.allocated.value)}"
        " allocated"
    )


def over(ours: float, theirs: float) -> str:
    """Return our figure beside the guide's."""
    change = ours / theirs - 1
    if abs(change) < 0.0005:
        return "equal" if ours == theirs else "below 0.05 %"
    return f"{change:+.1%}" if change < 0.995 else f"{ours / theirs:.1f}x"


def over_time(ours: float, theirs: float) -> str:
    """Return our time or rate beside the guide's, which is rougher."""
    return f"{ours / theirs - 1:+.0%}" if 0.2 < ours / theirs < 3 else f"{ours / theirs:.2g}x"


@functools.cache
def counts(spec: StepSpec) -> tuple[int, int]:
    """Return all parameters and those that train."""
    return count_parameters(meta_model(spec, config_of(spec)))


def held_bytes(spec: StepSpec, *, scales: bool = True) -> int:
    """Return the bytes of parameters, tied ones once, and buffers; with or without the scales of
    weights in 4 bits.
    """
    module = meta_model(spec, config_of(spec))
    named: dict[int, Any] = {id(each): each for each in module.parameters()}
    for name, each in module.named_buffers():
        if scales or not ("scales" in name or name.endswith("codes")):
            named[id(each)] = each
    return sum(each.numel() * each.element_size() for each in named.values())


def okadfa_parameters(layers: int, heads: int, width: int, inner: int) -> int:
    """Return those of OKADFA's shape: a GPT-2's without learned positions."""
    spec = gpt(layers, heads, width, inner, vocabulary=50_257, context=512, tied=True)
    return counts(spec)[0] - 512 * width


def tiny_gpt_parameters(vocabulary: int, context: int, layers: int, width: int, inner: int) -> int:
    """Return those of the guide's module, which has an own head with a bias, and no bias is left
    out.
    """
    norm, outside = 2 * width, (vocabulary + context) * width + (width + 1) * vocabulary
    block = 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 2 * norm
    return outside + norm + layers * block


FIGURES = {
    "published": published,
    "gpt": gpt,
    "known_parameters": known_parameters,
    "changed": dataclasses.replace,
    "Lora": Lora,
    "plan": plan,
    "largest": largest,
    "step_s": step_s,
    "in_all": in_all,
    "over": over,
    "over_time": over_time,
    "counts": counts,
    "held_bytes": held_bytes,
    "okadfa_parameters": okadfa_parameters,
    "tiny_gpt_parameters": tiny_gpt_parameters,
    "bytes": format_bytes,
    "count": format_count,
    "duration": format_duration,
    "GIB": GIB,
    "MASK_POSITIONS": MASK_POSITIONS,
}
"""What the page calls, by name."""


if __name__ == "__main__":
    print(tables.page("guides", **FIGURES))
