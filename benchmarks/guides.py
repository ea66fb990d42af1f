"""Memory, parameter and time claims of the five guides beside what brimful plans or counts for the
same settings.

python benchmarks/guides.py > docs/guides.md

Traces are kept in brimful's cache folder; the first run makes about fifteen of them, which takes
some minutes.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

import guides_time
import guides_trained
from brimful.base.env import cache_folder
from brimful.base.units import GIB, format_bytes, format_count
from brimful.hardware import catalog as devices
from brimful.model import catalog as models
from brimful.model.description import config_values
from brimful.planning.memory import Footprint
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.survey import Memory
from brimful.planning.target import target_of
from brimful.recipe import ModelRecipe
from brimful.rehearsal.models import config_of, count_parameters, meta_model
from brimful.rehearsal.store import StoredTraces

A100_40, A100_80, T4, V100 = (
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "Tesla T4",
    "Tesla V100-SXM2-32GB",
)
HEAD = """# Guides re-examined

Memory, parameter and time claims of the five guides that brimful grew from, beside what brimful counts or plans for the same settings.
Made by `python benchmarks/guides.py`; none of our figures is typed in.

"Measured" means that a log or a notebook output of the guide's repository shows it; "claimed" that a text says so. Our memory figures come from a trace of
the step with the guide's own options (mixed precision, loss, attention, optimizer as its stack has them): "in all" is what the driver would show, context and
libraries included, "allocated" what tensors take. Guides write GB; for memory read from a GPU's tools that is GiB, and so it is compared. The difference is
ours over the guide's figure. Where a guide names a maximum length, the longest batch decides the peak. Our times are predictions for a device that
was not at hand, with an interval of about a third either way, wider on a T4, of which no published run was at hand (benchmarks/time_truth.py).
"""
GEMMA_TARGETS = "q_proj,k_proj,v_proj,o_proj"
COLUMNS = ("where", "the guide says", "ours", "difference", "why")
Row = tuple[str, str, str, str, str]


def main() -> None:
    print(guide())


def guide() -> str:
    """The document."""
    sections = [
        ("000: Gemma-2-2B, LoRA and QLoRA on an A100", _gemma()),
        ("001: OKADFA, GPTs on WikiText on an A100", _okadfa()),
        ("002: PhoBERT text moderation on a T4", _phobert()),
        ("003: SmolLM2 unit conversion", _smollm()),
        ("004: tiny_gpt", _tiny_gpt()),
        *guides_time.rows(),
    ]
    return "\n".join(
        [
            HEAD,
            *(f"## {title}\n\n{_table(rows)}\n" for title, rows in sections),
            guides_trained.section(),
            "",
            _LEFT_OUT,
        ]
    )


_LEFT_OUT = """## Left out

- 001, WHITEPAPER: "memory -41 to -52 %" has no settings, script or log to plan for. A score matrix that linear attention could save is not stored by flash attention.
- 001, README: "GPT-2 Small fits a T4" has no batch; the row on feedback matrices says why it does not with that code.
- 003: micro-batches of 512, 256 and 128 prompts for generation: the code never reaches them (prompts go one by one), so there is nothing to compare."""


def _table(rows: Iterable[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- | --- | --- | ---: | --- |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# What is planned and counted


@functools.cache
def _memory(spec: StepSpec, device: str) -> Memory:
    return Memory(StoredTraces(spec, cache_folder() / "traces"), target_of(devices.get(device)))


def _plan(spec: StepSpec, device: str, micro_batch: int) -> Footprint:
    return _memory(spec, device).at(micro_batch)


def _in_all(footprint: Footprint) -> str:
    return (
        f"{format_bytes(footprint.driver.value)} in all, {format_bytes(footprint.allocated.value)}"
        " allocated"
    )


def _term(footprint: Footprint, name: str) -> str:
    return format_bytes(footprint.terms.get(name, 0))


def _over(ours: float, theirs: float) -> str:
    change = ours / theirs - 1
    if abs(change) < 0.0005:
        return "equal" if ours == theirs else "below 0.05 %"
    return f"{change:+.1%}" if change < 0.995 else f"{ours / theirs:.1f}x"


@functools.cache
def _counts(spec: StepSpec) -> tuple[int, int]:
    """All parameters and those that train."""
    return count_parameters(meta_model(spec, config_of(spec)))


def _stored_bytes(module: nn.Module) -> int:
    """Parameters, tied ones once, and buffers."""
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in {
            id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())
        }.values()
    )


def _published(name: str, **options: Any) -> StepSpec:
    row = models.find(name)
    assert row is not None, name
    return StepSpec(config_json=canonical(row.config), **options)


def _gpt(
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
    recipe = ModelRecipe(
        architecture="gpt2",
        layers=layers,
        heads=heads,
        width=width,
        mlp_width=inner,
        dropout=0.1,
        tie_embeddings=tied,
    )
    return StepSpec(
        config_json=canonical(config_values(recipe, vocabulary=vocabulary, context=context)),
        sequence_length=context,
        **options,
    )


# 000


def _gemma() -> Iterator[Row]:
    base = {
        "loss": "model",
        "attention": "eager",
        "padded": True,
        "weights": "fp16",
        "autocast": "fp16",
        "optimizer": "foreach",
    }
    lora = _published(
        "google/gemma-2-2b", sequence_length=768, adapter=Lora(16, GEMMA_TARGETS, 0.05), **base
    )
    plain = dataclasses.replace(lora, adapter=None)
    qlora = dataclasses.replace(
        lora, quantize="nf4", upcast=True, recompute=True, optimizer="paged_8bit"
    )
    yield from _gemma_counts(lora, plain)
    at_8, at_4 = (_plan(lora, A100_40, size) for size in (8, 4))
    ours = _plan(
        dataclasses.replace(
            lora, loss="chunked", loss_chunk=256, weights="bf16", autocast="bf16", padded=False
        ),
        A100_40,
        8,
    )
    yield (
        "guide, LoRA at 8 x 768 on an A100",
        "claimed ~25 GB",
        _in_all(at_8),
        _over(at_8.driver.value, 25 * GIB),
        (
            "the guide counts no logits: 256,000 entries take"
            f" {format_bytes(8 * 768 * 256_000 * 4)} per fp32 copy,"
            f" {_term(at_8, 'loss and logits')} at the peak; stored attention scores (Gemma-2 caps"
            f" them) are part of {_term(at_8, 'activations')} of activations. On 40 GB:"
            f" {at_8.verdict}. With brimful's chunked loss, nothing else changed but bf16, the same"
            f" batch allocates {format_bytes(ours.allocated.value)}: {ours.verdict}"
        ),
    )
    yield (
        "notebook, LoRA at 4 x 768, what really ran on an A100 40 GB",
        'measured: ran ("reduced from 8 for safer memory"), no figure',
        _in_all(at_4),
        at_4.verdict,
        "the step as it was trained; the largest micro-batch that fits is "
        + str(_memory(lora, A100_40).largest(16)),
    )
    at_8, open_8 = (
        _plan(qlora, A100_40, 8),
        _plan(dataclasses.replace(qlora, recompute=False), A100_40, 8),
    )
    yield (
        "guide, QLoRA at 8 x 768 on an A100",
        "claimed ~21 GB",
        f"{_in_all(at_8)}; {format_bytes(open_8.driver.value)} in all without recomputation",
        _over(at_8.driver.value, 21 * GIB),
        (
            f"the logits again, {_term(at_8, 'loss and logits')}, and an embedding in fp32. The log"
            " shows that recomputation was on (prepare_model_for_kbit_training), although the"
            " guide says that it must be off"
        ),
    )
    small = dataclasses.replace(lora, sequence_length=512)
    at_4 = _plan(small, T4, 4)
    yield (
        "guide, LoRA at 4 x 512 on a T4",
        "claimed: the T4 setting",
        _in_all(at_4),
        at_4.verdict,
        (
            f"a T4 gives {format_bytes(at_4.usable_bytes)}; {_term(at_4, 'weights')} of weights and"
            f" {_term(at_4, 'loss and logits')} of logits; up to"
            f" {_memory(small, T4).largest(4)} fit"
        ),
    )


def _gemma_counts(lora: StepSpec, plain: StepSpec) -> Iterator[Row]:
    total = _counts(plain)[0]
    yield (
        "notebook, gemma-2-2b",
        "measured 2,614,341,888 parameters",
        f"{total:,}",
        _over(total, 2_614_341_888),
        "counted on the module",
    )
    for rank, measured in ((8, 3_194_880), (16, 6_389_760), (32, 12_779_520)):
        trainable = _counts(dataclasses.replace(lora, adapter=Lora(rank, GEMMA_TARGETS, 0.05)))[1]
        yield (
            f"notebook, LoRA r = {rank}",
            f"measured {measured:,} trainable",
            f"{trainable:,} ({trainable / (total + trainable):.3%})",
            _over(trainable, measured),
            "q, k, v, o of 26 blocks",
        )
    rank_16 = _counts(lora)[1]
    yield (
        "README, LoRA r = 16",
        "claimed 7.7M trainable, 0.4 %",
        f"{rank_16:,} ({rank_16 / (total + rank_16):.2%})",
        _over(rank_16, 7.7e6),
        (
            "the README takes 2304 x 2304 projections and 18 heads; the model has 8 query heads and"
            " 4 key-value heads of 256"
        ),
    )
    yield (
        "notebook, adapter file r = 16",
        "measured 25.6 MB",
        f"{4 * rank_16 / 1e6:.1f} MB",
        _over(round(4 * rank_16 / 1e6, 1), 25.6),
        "fp32",
    )
    half = _stored_bytes(meta_model(plain, config_of(plain)))
    yield (
        "notebook, fp16 footprint",
        "measured 5.23 GB",
        f"{half / 1e9:.2f} GB",
        _over(round(half / 1e9, 2), 5.23),
        "2 bytes a parameter, head tied",
    )
    four = dataclasses.replace(plain, quantize="nf4")
    module = meta_model(four, config_of(four))
    held = _stored_bytes(module)
    packed = held - sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in module.named_buffers()
        if "scales" in name or name.endswith("codes")
    )
    yield (
        "guide, NF4 footprint",
        "claimed 1.2 GB; the notebook measured 2.19 GB",
        f"{packed / 1e9:.2f} GB, {held / 1e9:.2f} GB with the scales",
        f"{_over(packed, 1.2e9)}; {_over(round(packed / 1e9, 2), 2.19)}",
        (
            f"the embedding of 256,000 x 2304 stays in 16 bits ({256_000 * 2304 * 2 / 1e9:.2f} GB);"
            " transformers' footprint leaves the scales out"
        ),
    )


# 001


@dataclasses.dataclass(frozen=True)
class _Okadfa:
    name: str
    layers: int
    heads: int
    width: int
    inner: int
    batch: int
    claimed: str
    claimed_parameters: float
    claimed_gib: float

    def spec(self, inner: int) -> StepSpec:
        options = {
            "autocast": "bf16",
            "loss": "model",
            "optimizer": "foreach",
            "accumulates": self.name != "Fast",
        }
        return _gpt(
            self.layers,
            self.heads,
            self.width,
            inner,
            vocabulary=50_257,
            context=512,
            tied=True,
            **options,
        )

    def parameters(self, inner: int) -> int:
        """Without learned positions, which OKADFA has not."""
        return _counts(self.spec(inner))[0] - 512 * self.width

    def feedback_bytes(self, inner: int) -> int:
        """An fp32 matrix of vocabulary rows for each of the six linear layers of a block."""
        return 4 * 50_257 * self.layers * (5 * self.width + inner)

    def running_sums_bytes(self) -> int:
        """fp32 [batch, position, 2 d, d] of every head, saved for the backward pass."""
        per_head = self.width // self.heads
        return 4 * self.layers * self.heads * self.batch * 512 * 2 * per_head**2


_PRESETS = (
    _Okadfa("Fast", 12, 12, 768, 3072, 32, "85M", 85e6, 20),
    _Okadfa("Production", 12, 16, 1024, 4096, 20, '175M, "GPT-2 Medium scale"', 175e6, 35),
    _Okadfa("Max", 24, 16, 1024, 4096, 16, '355M, "GPT-2 Large scale"', 355e6, 55),
    _Okadfa("Mega", 36, 20, 1280, 5120, 8, "750M", 750e6, 70),
)
_SEED_INNER = 3072


def _okadfa() -> Iterator[Row]:
    sizes = {
        name: models.find(f"openai-community/{name}") for name in ("gpt2-medium", "gpt2-large")
    }
    known = ", ".join(
        f"{name} {format_count(row.parameters)}" for name, row in sizes.items() if row is not None
    )
    for preset in _PRESETS:
        ours, as_run = preset.parameters(preset.inner), preset.parameters(_SEED_INNER)
        why = (
            f"85M leaves out the embedding ({format_count(50_257 * preset.width)})"
            if preset.name == "Fast"
            else f"published: {known}"
        )
        run = (
            ""
            if ours == as_run
            else f"; {format_count(as_run)} as the guide's command runs, which omits --d_ff"
        )
        yield (
            f"guide, {preset.name}",
            f"claimed {preset.claimed}",
            f"{format_count(ours)}{run}",
            _over(ours, preset.claimed_parameters),
            why,
        )
    for preset in _PRESETS:
        step = _plan(preset.spec(preset.inner), A100_80, preset.batch)
        yield (
            f"guide, {preset.name} at {preset.batch} x 512 on an A100",
            f"claimed {preset.claimed_gib:g} GB",
            f"{_in_all(step)}, for a GPT-2 of that shape with flash attention",
            _over(step.driver.value, preset.claimed_gib * GIB),
            (
                "the guide's code is no such model: feedback matrices that no step uses take"
                f" {format_bytes(preset.feedback_bytes(preset.inner))}, and running sums of its"
                f" attention up to {format_bytes(preset.running_sums_bytes())} in fp32 (half in"
                " bf16), so the claim cannot be its own peak either"
            ),
        )
    small = _Okadfa("GPT-2 small", 12, 12, 768, 3072, 8, "", 0, 0)
    step = _plan(dataclasses.replace(small.spec(3072), autocast="fp16", flash=False), T4, 8)
    yield (
        "docs, --use_gpt2_small",
        "claimed 124M and 163M",
        format_count(small.parameters(3072)),
        _over(small.parameters(3072), 163e6),
        (
            "163M is a GPT-2 with learned positions and its tied head counted twice"
            f" ({format_count(small.parameters(3072) + (1024 + 50_257) * 768)}). At 8 x 512 a GPT-2"
            f" small of this shape takes {_in_all(step)} on a T4; with"
            f" {format_bytes(small.feedback_bytes(3072))} of feedback matrices it does not fit"
            f" {format_bytes(step.usable_bytes)}"
        ),
    )
    for where, shape, claimed in (
        ("quick test", (2, 4, 256, 1024), 14.4e6),
        ("T4 run", (4, 4, 256, 3072), 20e6),
        ("A100 run", (6, 6, 384, 3072), 37e6),
        ("A100 run", (8, 6, 384, 1536), 33e6),
    ):
        count = _Okadfa("reported", *shape, 4, "", 0, 0).parameters(shape[3])
        yield (
            f"MODEL_STATUS, {where}",
            f"reported {claimed / 1e6:g}M",
            format_count(count),
            _over(count, claimed),
            "counted",
        )


# 002


def _phobert() -> Iterator[Row]:
    options: dict[str, Any] = {
        "method": "classify",
        "options_json": '{"labels": 2}',
        "autocast": "fp16",
        "flash": False,
        "padded": True,
    }
    long = _published("vinai/phobert-base-v2", sequence_length=192, **options)
    total = _counts(long)[0]
    yield (
        "README, phobert-base-v2",
        "claimed ~135M parameters",
        f"{total:,}",
        _over(total, 135e6),
        "with the classifier instead of the pooler",
    )
    typical = (
        "Batches are padded to their longest text, 99 % of texts have at most 60 words, one full"
        " text in a batch brings it to 192 tokens"
    )
    for where, says, size, claimed_gib, recompute, accumulates, why in (
        (
            "comment, 16 with recomputation on a T4",
            "measured 2.7 GB",
            16,
            2.7,
            True,
            True,
            f"{typical}; weights, gradients and states alone are 16 bytes a parameter",
        ),
        (
            "later document, 32 without recomputation on a T4",
            "claimed 12-13 GB",
            32,
            12.5,
            False,
            False,
            "the batch of that document is not said; 32 and 48 were used then",
        ),
        (
            "later document, 48 without recomputation on a T4",
            "claimed 12-13 GB",
            48,
            12.5,
            False,
            False,
            "as above",
        ),
        (
            "comment, 80 without recomputation",
            "measured 8.1 GB",
            80,
            8.1,
            False,
            False,
            "the moment of the reading and its lengths are not known",
        ),
    ):
        spec = dataclasses.replace(long, recompute=recompute, accumulates=accumulates)
        full, short = (
            _plan(spec, T4, size),
            _plan(dataclasses.replace(spec, sequence_length=64), T4, size),
        )
        yield (
            where,
            says,
            f"192 tokens: {_in_all(full)}; 64 tokens: {format_bytes(short.driver.value)} in all",
            (
                f"{_over(full.driver.value, claimed_gib * GIB)};"
                f" {_over(short.driver.value, claimed_gib * GIB)}"
            ),
            why,
        )
    plain = _plan(dataclasses.replace(long, accumulates=True), T4, 16)
    kept = _plan(dataclasses.replace(long, recompute=True), T4, 16)
    yield (
        "guide, advice against running out",
        "claimed: disabling checkpointing helps",
        (
            f"16 x 192 takes {format_bytes(plain.driver.value)} without,"
            f" {format_bytes(kept.driver.value)} with it"
        ),
        _over(plain.driver.value, kept.driver.value),
        "recomputation is what saves memory; the advice is the wrong way round",
    )


# 003


def _smollm() -> Iterator[Row]:
    options: dict[str, Any] = {
        "sequence_length": 128,
        "autocast": "bf16",
        "loss": "model",
        "padded": True,
        "recompute": True,
        "optimizer": "fused",
    }
    spec = _published("HuggingFaceTB/SmolLM2-360M", adapter=Lora(32), accumulates=False, **options)
    total, trainable = _counts(spec)
    base = total - trainable
    yield (
        "assignment, SmolLM2-360M",
        "claimed 361.8M parameters",
        f"{base:,}",
        _over(round(base / 1e5), 3618),
        "head tied",
    )
    limit = f"{format_count(total)} with r = 32"
    yield (
        "assignment, limit with adapter",
        "at most 380M",
        limit,
        _over(total, 380e6),
        "holds; r = 32 is within it",
    )
    rank_4 = _counts(dataclasses.replace(spec, adapter=Lora(4)))[1]
    yield (
        "training log, r = 4",
        "measured 2,170,880 trainable",
        f"{rank_4:,}",
        _over(rank_4, 2_170_880),
        "all linear layers but the head",
    )
    for rank in (16, 32):
        count = _counts(dataclasses.replace(spec, adapter=Lora(rank)))[1]
        large = _counts(_published("HuggingFaceTB/SmolLM2-1.7B", adapter=Lora(rank), **options))[1]
        yield (
            f"REDUCE_SUBMISSION_SIZE, r = {rank}",
            "sizes worked out for SmolLM2-1.7B",
            f"{format_count(count)}, {4 * count / 1e6:.1f} MB in fp32",
            _over(count, large),
            (
                f"against {format_count(large)} for 1.7B: the document takes the wrong model; the"
                " submission may have 50 MB"
            ),
        )
    for device, size, flash in ((A100_80, 64, True), (A100_40, 32, True), (V100, 16, False)):
        here = dataclasses.replace(spec, flash=flash)
        step = _plan(here, device, size)
        largest = _memory(here, device).largest(4096)
        yield (
            f"guide, training batch {size} x 128 on {device}",
            "claimed: the size for it",
            _in_all(step),
            f"{step.driver.value / step.usable_bytes:.0%} of the device",
            (
                f"{'more than 4095' if largest == 4096 else largest} sequences fit: the device's"
                " memory is not what limits the batch"
            ),
        )


# 004


def _tiny_gpt() -> Iterator[Row]:
    presets = (
        ("guide, M4 setting", 4096, 128, 5, 360, 1440, "32M", 32e6),
        ("code, M4 setting", 8192, 128, 5, 360, 1440, "13M and 32M", 13e6),
        ("guide, A100 setting", 4096, 256, 6, 512, 2048, "100M", 100e6),
        ("code, later cloud setting", 4096, 512, 8, 512, 2048, '30M, elsewhere "50M"', 30e6),
    )
    for where, vocabulary, context, layers, width, inner, says, claimed in presets:
        module = tiny_gpt(vocabulary, context, layers, width, inner)
        count, held = (
            sum(tensor.numel() for tensor in tensors)
            for tensors in (module.parameters(), (*module.parameters(), *module.buffers()))
        )
        masks = (
            f"every block keeps a mask of {MASK_POSITIONS} x {MASK_POSITIONS}"
            f" ({format_bytes(4 * MASK_POSITIONS**2)} in each checkpoint)"
        )
        near = abs(held / claimed - 1) < 0.02
        yield (
            where,
            f"claimed {says}",
            f"{format_count(count)} parameters, {format_count(held)} with mask buffers",
            _over(count, claimed),
            (
                f"{masks};"
                f" {'the claim counts it as parameters' if near else 'the claim is no count of either kind' if claimed > held else 'no parameters'}"
            ),
        )
    cloud = _gpt(
        8,
        8,
        512,
        2048,
        vocabulary=4096,
        context=512,
        tied=False,
        autocast="bf16",
        loss="model",
        attention="eager",
        optimizer="foreach",
    )
    fused = dataclasses.replace(cloud, attention="sdpa", loss="chunked", optimizer="fused")
    for size, says in ((128, "measured: runs"), (192, "measured: out of memory on 39.56 GiB")):
        step, ours = _plan(cloud, A100_40, size), _plan(fused, A100_40, size)
        yield (
            f"commit messages, {size} x 512 on an A100 40 GB",
            says,
            _in_all(step),
            step.verdict,
            (
                "a GPT-2 of that shape with stored scores stands for it (no mask buffers, no bias"
                f" of the head, which are {format_bytes(8 * 4 * MASK_POSITIONS**2 + 4 * 4096)});"
                f" with fused attention and chunked loss brimful needs {_in_all(ours)}"
            ),
        )
    step = _plan(cloud, A100_40, 192)
    yield (
        "RETRAINING_PLAN, cause of it",
        "claimed: logits, 1 GB",
        (
            f"one fp32 copy of the logits is {format_bytes(192 * 512 * 4096 * 4)}; activations"
            f" {_term(step, 'activations')} at the peak"
        ),
        _over(192 * 512 * 4096 * 4, GIB),
        (
            "stored attention scores are 8 blocks of several copies of"
            f" {format_bytes(192 * 8 * 512 * 512 * 4)} in fp32 each"
        ),
    )


MASK_POSITIONS = 2048
"""Rows of the causal mask that every tiny_gpt block keeps, whatever its context."""


def tiny_gpt(vocabulary: int, context: int, layers: int, width: int, inner: int) -> nn.Module:
    """Parameters and buffers of the guide's module, on the meta device; it computes nothing."""
    with torch.device("meta"):
        blocks = nn.ModuleList()
        for _ in range(layers):
            linears = [nn.Linear(width, width) for _ in range(4)] + [
                nn.Linear(width, inner),
                nn.Linear(inner, width),
            ]
            block = nn.ModuleList([nn.LayerNorm(width), *linears, nn.LayerNorm(width)])
            block.register_buffer("mask", torch.empty(MASK_POSITIONS, MASK_POSITIONS))
            blocks.append(block)
        outside = [
            nn.Embedding(vocabulary, width),
            nn.Embedding(context, width),
            nn.LayerNorm(width),
            nn.Linear(width, vocabulary),
        ]
        return nn.ModuleList([*outside, blocks])


if __name__ == "__main__":
    main()
