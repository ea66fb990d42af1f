"""A reduced step: small enough to run in seconds, with every part of the planned one."""

from dataclasses import dataclass, replace

from brimful.model.description import training_flop_per_token
from brimful.planning.plan import Plan
from brimful.recipe import ModelRecipe, Recipe

LEAST = {"passes": 2, "sequences": 2, "layers": 2, "positions": 128}
"""Two micro-batches of two sequences still show accumulation and batching; 128 positions are two
blocks of query rows (model/attention.py). In the order in which sizes are halved: those that
rounding depends on least come first.
"""
LEAST_HEADS, LEAST_VOCABULARY = 2, 1024
MOST_PIECES = 4
"""Most pieces of the loss in one micro-batch of a reduced step."""
MOST_POSITIONS = 1024
"""Longest sequence. The reference runs eager attention, which keeps every score and would not fit
at lengths at which the plan does.
"""


@dataclass(frozen=True)
class Reduced:
    """A reduced step and how it is split.

    Attributes:
        recipe: Recipe with the reduced model, without dropout.
        vocabulary: Entries of the embedding.
        micro_batches: Micro-batches as the plan's, perhaps fewer and smaller; a smaller last one is
            kept.
        loss_chunk: Tokens per piece of the loss.
        differences: Differences from the planned step, in words.
    """

    recipe: Recipe
    vocabulary: int
    micro_batches: tuple[int, ...]
    loss_chunk: int
    differences: tuple[str, ...]


@dataclass(frozen=True)
class _Size:
    """The dimensions of a step: `passes` micro-batches of `sequences`, and a last one of `rest`."""

    passes: int
    sequences: int
    rest: int
    layers: int
    positions: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def micro_batches(self) -> tuple[int, ...]:
        return (self.sequences,) * self.passes + (self.rest,) * bool(self.rest)


def reduced_step(recipe: Recipe, plan: Plan, vocabulary: int, most_flop: float) -> Reduced:
    """Return the planned step with its dimensions halved one after the other, until it needs at
    most `most_flop` or nothing is left to halve.

    Raises:
        RecipeError: the recipe fine-tunes a published model.
    """
    model = recipe.fresh_model
    full = sum(1 for size in plan.micro_batches if size == plan.micro_batches[0])
    rest = plan.effective_batch - full * plan.micro_batches[0]
    whole = _Size(
        full,
        plan.micro_batches[0],
        rest,
        model.layers,
        recipe.sequence_length,
        model.heads,
        model.kv_heads or model.heads,
        vocabulary,
    )
    size = replace(whole, positions=min(whole.positions, MOST_POSITIONS))
    while _flop(model, size) > most_flop and (smaller := _halved(size)) != size:
        size = smaller
    loss_chunk, differences = _loss_chunk(plan, size), _differences(model, whole, size)
    if loss_chunk != plan.loss_chunk:
        differences.append(f"pieces of the loss {plan.loss_chunk:,} -> {loss_chunk:,} tokens")
    if model.dropout:
        differences.append(f"dropout {model.dropout:g} -> 0, so that both steps compute the same")
    return Reduced(
        _recipe(recipe, size), size.vocabulary, size.micro_batches, loss_chunk, tuple(differences)
    )


def _halved(size: _Size) -> _Size:
    """Return the size with the first dimension halved that is above its least."""
    for name, least in LEAST.items():
        value = getattr(size, name)
        if value > least:
            return _with_rest(replace(size, **{name: max(least, value // 2)}), size)
    if size.heads > LEAST_HEADS and size.heads % 2 == 0 and size.kv_heads % 2 == 0:
        return replace(size, heads=size.heads // 2, kv_heads=size.kv_heads // 2)
    return replace(
        size, vocabulary=max(min(LEAST_VOCABULARY, size.vocabulary), size.vocabulary // 2)
    )


def _with_rest(size: _Size, before: _Size) -> _Size:
    if not before.rest:
        return size
    return replace(
        size, rest=min(max(1, before.rest * size.sequences // before.sequences), size.sequences - 1)
    )


def _flop(model: ModelRecipe, size: _Size) -> float:
    return (
        sum(size.micro_batches)
        * size.positions
        * training_flop_per_token(_model(model, size), size.vocabulary, size.positions)
    )


def _model(model: ModelRecipe, size: _Size) -> ModelRecipe:
    share = size.heads / model.heads
    changes = {
        "layers": size.layers,
        "heads": size.heads,
        "kv_heads": None if model.kv_heads is None else size.kv_heads,
        "width": int(model.width * share),
        "mlp_width": None if model.mlp_width is None else int(model.mlp_width * share),
        "dropout": 0.0,
    }
    return ModelRecipe.model_validate({**model.model_dump(), **changes})


def _recipe(recipe: Recipe, size: _Size) -> Recipe:
    model = _model(recipe.fresh_model, size).model_dump()
    batch = {"sequences": sum(size.micro_batches)}
    return Recipe.model_validate(
        {**recipe.model_dump(), "model": model, "batch": batch, "sequence_length": size.positions}
    )


def _loss_chunk(plan: Plan, size: _Size) -> int:
    """Return the planned piece of the loss where the micro-batch is as large as planned; else one
    that makes as many pieces, up to MOST_PIECES.
    """
    planned, tokens = plan.micro_batches[0] * plan.sequence_length, size.sequences * size.positions
    if planned == tokens:
        return plan.loss_chunk
    return -(-tokens // min(-(-planned // plan.loss_chunk), MOST_PIECES))


def _differences(model: ModelRecipe, whole: _Size, size: _Size) -> list[str]:
    lines = []
    if whole.micro_batches != size.micro_batches:
        lines.append(
            f"sequences per step {sum(whole.micro_batches):,} -> {sum(size.micro_batches)} as"
            f" {' + '.join(map(str, size.micro_batches))}"
        )
    names = {"layers": "blocks", "positions": "sequence length", "vocabulary": "vocabulary"}
    lines += [
        f"{label} {getattr(whole, name):,} -> {getattr(size, name):,}"
        for name, label in names.items()
        if getattr(whole, name) != getattr(size, name)
    ]
    if whole.heads != size.heads:
        lines.append(
            f"width {model.width:,} -> {_model(model, size).width:,} ({whole.heads} -> {size.heads}"
            " heads)"
        )
    return lines
