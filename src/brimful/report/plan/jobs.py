"""Plans of other tools' jobs as text: the answer, and the facts with the keys that say them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brimful.base.types import Texts
from brimful.base.units import format_between, format_bytes, format_count, format_duration
from brimful.base.warning_codes import as_note
from brimful.integrations.other_tools.job import ReadJob, Sampling
from brimful.integrations.other_tools.planned import MOST_TRIED, PlannedJob, UnplannedJob
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.planning.step import Lora
from brimful.report.plan.table import VERDICTS
from brimful.report.quantities import memory_of
from brimful.report.table import Table
from brimful.report.views import Block, Heading, Paragraph

LABELS: Texts = {
    "model": "model",
    "weights": "weights",
    "autocast": "autocast",
    "quantize": "quantised base",
    "upcast": "fp32 beside 16 bits",
    "adapter": "adapter",
    "sequence_length": "tokens of a row",
    "rows": "rows",
    "micro_batch": "micro-batch",
    "accumulation": "accumulation",
    "optimizer": "optimizer",
    "clips": "gradient clipping",
    "recompute": "recomputation",
    "attention": "attention",
    "loss": "loss",
    "kernels": "kernels",
    "sampling": "answers at once",
    "offloads": "offloading",
    "held": "in part",
}
"""Of the facts of a job, in the order in which they are shown."""
LOSSES: Texts = {
    "torch": "over whole logits",
    "in_place": "over whole logits, in place",
    "fused_linear": "fused with the head (Liger)",
    "cut": "cut cross-entropy",
    "chunked": "in 8 pieces",
    "chunked_outputs": "in 8 pieces, of logits that stand",
    "tiled": "in tiles, computed again",
    "values": "of scores, beside whole logits",
}
KERNELS: Texts = {
    "fused_rms_norm": "fused RMSNorm",
    "fused_rope": "fused rotary positions",
    "fused_glu": "fused gated MLP",
    "fused_lora": "fused LoRA layers",
    "fused_lora_mlp": "fused LoRA MLP",
    "fp32_outputs": "logits upcast again by accelerate",
}
WORDS: Mapping[Any, str] = {
    True: "yes",
    False: "no",
    "nf4": "4 bits, double quantisation",
    "nf4_single": "4 bits",
    "int8": "8 bits (LLM.int8)",
    None: "nothing",
    "ends": "norms, embeddings and head",
    "reentrant": "every block, reentrant",
    "non_reentrant": "every block",
    "joined": "packed, of a micro-batch in one",
    "packed": "packed",
    "padded": "an example each, padded",
    "flash2": "flash-attn",
    "expanded": "sdpa, keys repeated",
    "published": "as published",
    "foreach": "AdamW",
    "fused": "AdamW, fused",
    "8bit": "AdamW, 8-bit states",
    "bnb_8bit": "AdamW, 8-bit states",
    "bnb_paged_8bit": "AdamW, 8-bit states, paged",
    "paged_8bit": "AdamW, 8-bit states, paged",
    "paged_32bit": "AdamW, paged",
}
"""Of values that are names."""
Entry = PlannedJob | UnplannedJob


def job_blocks(name: str, reads: Sequence[ReadJob], entries: Sequence[Entry]) -> Iterator[Block]:
    """Return all about a file on devices.

    Args:
        name: The file's.
        reads: What it says, by device: some defaults depend on that.
        entries: The plans by device.
    """
    read = reads[0]
    yield from map(Paragraph, _answers(name, reads, entries))
    yield Heading("What the file says")
    yield _facts(read)
    for other, entry in zip(reads, entries, strict=True):
        yield from map(Paragraph, _otherwise(read, other, entry))
    if read.unknown:
        yield Heading("Not understood, and it decides memory or time")
        yield from (Paragraph(each.describe()) for each in read.unknown)
        yield Paragraph("A key that decides nothing in your job is left out by `KEY=null`.")
    planned = [entry for entry in entries if isinstance(entry, PlannedJob)]
    if len(planned) == 1:
        yield Heading(f"Memory at the peak on {planned[0].device.name}")
        yield _terms(planned[0])
    yield Heading("Remarks")
    yield from (Paragraph(each) for entry in planned for each in _sampling(entry))
    yield from map(Paragraph, _notes(reads))


def exit_code(entries: Sequence[Entry]) -> int:
    """Return 0 if the job fits on at least one device as it is, 1 if it does not or may not, and 2
    if nothing could be estimated.
    """
    planned = [entry for entry in entries if isinstance(entry, PlannedJob)]
    if not planned:
        return 2
    return 0 if any(entry.verdict == "fits" for entry in planned) else 1


def _answers(name: str, reads: Sequence[ReadJob], entries: Sequence[Entry]) -> list[str]:
    answers = []
    for read, entry in zip(reads, entries, strict=True):
        keys = ", ".join(each.partition(":")[0] for each in read.assumed)
        assumes = f"; this rests on what is assumed of {keys}" if keys else ""
        answers.append(f"{read.tool.title}, {name}: {_answer(entry)}{assumes}")
    return answers


def _answer(entry: Entry) -> str:
    if isinstance(entry, UnplannedJob):
        return f"cannot be estimated for {entry.device.name}: {entry.reason}"
    foot = entry.footprint
    words = (
        f"{VERDICTS[entry.verdict]} {entry.device.name} with a micro-batch of"
        f" {foot.micro_batch}: {memory_of(foot.driver.value, foot.usable_bytes)}"
    )
    if between := format_between(format_bytes, foot.driver.low, foot.driver.high):
        words += f" ({between})"
    if entry.longest_row:
        words += (
            f"; rows of up to {entry.longest_row:,} tokens surely fit, and how long yours are is"
            " not known"
        )
    if entry.exceeded:
        words += (
            f"; rows may be longer than the {entry.exceeded:,} positions the model was made for"
        )
    if entry.largest or (entry.largest == 0 and not entry.longest_row):
        words += f"; {_largest(entry.largest)}"
    if entry.step_s is not None and entry.verdict != "does not fit":
        step = entry.step_s
        between = format_between(format_duration, step.low, step.high)
        rate = format_count(entry.tokens / step.value)
        words += f"; a step about {format_duration(step.value)} ({between}), {rate} tokens/s"
    if entry.device.architecture:
        words += "; how long a step takes is not known: no run on AMD's GPUs was compared"
    return words


def _largest(largest: int) -> str:
    if largest == 0:
        return "no micro-batch fits"
    return f"{'at least ' * (largest >= MOST_TRIED)}{largest} would fit"


def _otherwise(read: ReadJob, other: ReadJob, entry: Entry) -> list[str]:
    """Return the facts that are others on a device than in the table."""
    differing = [
        f"{LABELS[name]} {described(name, value)}"
        for name, value in other.values.items()
        if read.values.get(name) != value
    ]
    return [f"on {entry.device.name}: {', '.join(differing)}"] if differing else []


def _facts(read: ReadJob) -> Table:
    rows = [
        (label, described(name, read.values[name]), read.said_by[name])
        for name, label in LABELS.items()
        if name in read.values and (name != "sampling" or read.values[name] is not None)
    ]
    return Table(("Fact", "Value", "Said by"), tuple(rows))


def described(name: str, value: Any) -> str:
    """Return the value of a fact in words."""
    if name == "adapter":
        return _adapter(value)
    if isinstance(value, LossChain):
        return LOSSES[value.cross_entropy]
    if isinstance(value, TrainerQuirks):
        kernels = [word for key, word in KERNELS.items() if getattr(value, key)]
        return ", ".join(kernels) or "plain"
    if isinstance(value, Sampling):
        by = f", vLLM with {value.vllm_share:g} of the device" if value.vllm_share else ""
        return f"{value.rows:,} of {value.tokens:,} tokens{by}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return WORDS.get(value, str(value))


def _adapter(adapter: Lora | None) -> str:
    if adapter is None:
        return "none: every weight trains"
    kind = "DoRA" if adapter.dora else "LoRA"
    dropout = f", dropout {adapter.dropout:g}" * (adapter.dropout > 0)
    targets = adapter.targets.replace(",", ", ")
    saved = f", beside copies of {adapter.saved}" * bool(adapter.saved)
    return f"{kind} of rank {adapter.rank} in {adapter.dtype} on {targets}{dropout}{saved}"


def _terms(entry: PlannedJob) -> Table:
    terms = [(name, value) for name, value in entry.footprint.terms.items() if value >= 1 << 20]
    terms.sort(key=lambda term: -term[1])
    return Table(("Term", "Size"), tuple((name, format_bytes(value)) for name, value in terms))


def _sampling(entry: PlannedJob) -> Iterator[str]:
    """Say what drawing answers takes, where a job is rewarded for them."""
    if entry.sampled is not None:
        peak = memory_of(entry.sampled.memory.value, entry.footprint.usable_bytes)
        told = f"sampling on {entry.device.name}: {entry.sampled.about}; {peak}"
        yield f"{told}, {entry.sampled.verdict}"


def _notes(reads: Sequence[ReadJob]) -> list[str]:
    tool = reads[0].tool
    notes = [
        f"By the tables of {tool.title} {tool.version} ({tool.source}, read"
        f" {tool.read}); another version may have other defaults."
    ]
    every = dict.fromkeys(each for read in reads for each in read.assumed)
    assumed = [f"Assumed: {each}." for each in every]
    return [*assumed, *notes, *(as_note(each, "B105") for each in tool.approximations)]
