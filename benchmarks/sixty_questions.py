"""Sixty questions that people ask of a planner: what fits, how sure that is, and what others saw.

    python benchmarks/sixty_questions.py [--seed 22] [--minutes 20] [--no-record]

The questions are about models of 135M to 70B parameters, full tuning, LoRA and QLoRA, 14 devices, and
1,024 to 32,768 tokens. Those of `sixty_questions.json` were answered in public: a report says that a
run with this model, method, device, length and number of sequences in a pass ran or failed for want
of memory, and mostly how much it took. The reported steps are those of other trainers; `note` says
what they do otherwise. All others are drawn with a seed, so that every model, device, method and
length is asked about. A verdict is right where the report's run ran and brimful does not say "does not
fit", or failed and brimful does not say "fits".
"""

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from brimful.base.errors import BrimfulError
from brimful.base.units import GIB
from brimful.chains.devices import facts_of
from brimful.hardware import catalog
from brimful.planning.derive import Derived, derive_with_memory
from brimful.planning.remedies import cheapest_remedy
from brimful.planning.specs import model_facts
from brimful.planning.survey import Tracer
from brimful.recipe import Recipe, load
from brimful.rehearsal.kept_traces import kept_traces
from record import write_record

REPORTS = Path(__file__).with_suffix(".json")
COUNT = 60
SEQUENCES = 16
MODELS = (
    "HuggingFaceTB/SmolLM2-135M",
    "HuggingFaceTB/SmolLM2-360M",
    "Qwen/Qwen2.5-0.5B",
    "meta-llama/Llama-3.2-1B",
    "Qwen/Qwen2.5-1.5B",
    "HuggingFaceTB/SmolLM2-1.7B",
    "meta-llama/Llama-3.2-3B",
    "Qwen/Qwen3-4B",
    "mistralai/Mistral-7B-v0.3",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen2.5-32B",
    "meta-llama/Llama-3.1-70B",
)
DEVICES = (
    "Tesla T4",
    "Tesla V100-SXM2-16GB",
    "NVIDIA GeForce RTX 3060",
    "NVIDIA GeForce RTX 4060",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA L4",
    "NVIDIA RTX A6000",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
    "Apple M3 Max",
)
METHODS = {"full": (), "lora": ("adapter.rank=16",), "qlora": ("adapter.rank=16", "quantize=nf4")}
LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768)
RECIPE = """
name: question
method: sft
sequence_length: {sequence_length}
batch: {{sequences: {sequences}}}
training: {{steps: 1000}}
model: {model}
data: {{path: examples.jsonl}}
optimizer: {{learning_rate: 1e-4}}
"""


@dataclass(frozen=True)
class Question:
    """What is asked, and what a public report says about it.

    Attributes:
        micro_batch: Sequences in a pass; None: the plan chooses.
        changes: Of the recipe, as on the command line.
        outcome: ran or failed; empty without a report.
        gib: What the reported run took.
        note: What it did otherwise.
    """

    model: str
    method: str
    device: str
    sequence_length: int
    micro_batch: int | None = None
    changes: tuple[str, ...] = ()
    outcome: str = ""
    gib: float | None = None
    source: str = ""
    note: str = ""


def reported() -> list[Question]:
    """Return the questions that public reports answer."""
    rows = json.loads(REPORTS.read_text(encoding="utf-8"))
    return [Question(**{**row, "changes": tuple(row.get("changes", ()))}) for row in rows]


def drawn(count: int, seed: int) -> list[Question]:
    """Return so many questions, of which each one asks as much that no earlier one asked as any of
    200 that are drawn. None is longer than its model can read.
    """
    draw, found, seen = random.Random(seed), list[Question](), Counter[object]()
    contexts = {name: _context(name) for name in MODELS}
    every = [
        Question(model, method, device, length)
        for model, method, device, length in product(MODELS, METHODS, DEVICES, LENGTHS)
        if length <= contexts[model]
    ]
    while len(found) < count:
        tried = draw.sample(every, 200)
        chosen = min(tried, key=lambda each: sum(seen[value] for value in _asked(each)))
        found.append(chosen)
        seen.update(_asked(chosen))
    return found


def _asked(question: Question) -> tuple[object, ...]:
    return (question.model, question.device, question.method, question.sequence_length)


def _context(model: str) -> int:
    recipe = load_text(RECIPE.format(model=model, sequence_length=64, sequences=1))
    return model_facts(recipe).context or LENGTHS[-1]


def load_text(text: str, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a text."""
    path = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path()  # noqa: S108 - a short-lived recipe
    file = path / f"sixty-questions-{time.time_ns()}.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        return load(str(file), list(changes))
    finally:
        file.unlink()


def recipe_of(question: Question) -> Recipe:
    """Return the recipe that a question is about."""
    text = RECIPE.format(
        model=question.model, sequence_length=question.sequence_length, sequences=SEQUENCES
    )
    fixed = [] if question.micro_batch is None else [f"plan.micro_batch={question.micro_batch}"]
    return load_text(text, [*METHODS[question.method], *question.changes, *fixed])


def answer(question: Question, traces: Tracer) -> dict[str, Any]:
    """Return a question with brimful's answer."""
    asked = {
        "model": question.model,
        "method": question.method,
        "device": question.device,
        "sequence_length": question.sequence_length,
        "micro_batch": question.micro_batch,
    }
    if question.source:
        asked |= {name: getattr(question, name) for name in ("outcome", "gib", "source", "note")}
    try:
        recipe, device = recipe_of(question), catalog.get(question.device)
        derived = derive_with_memory(recipe, device, traces, facts_of(device))
    except BrimfulError as error:
        return {**asked, "verdict": "refused", "reason": str(error)}
    return {**asked, **_told(question, derived, traces)}


def _told(question: Question, derived: Derived, traces: Tracer) -> dict[str, Any]:
    size = question.micro_batch or derived.plan.micro_batches[0]
    footprint = derived.memory.at(size)
    peak, told = footprint.driver, dict[str, Any]()
    if footprint.verdict != "fits" and question.micro_batch is None:
        remedy = cheapest_remedy(derived.prepared, traces, recomputes=derived.plan.recompute)
        told["remedy"] = None if remedy is None else remedy.set
    step = derived.plan.predicted.get("step_time_s")
    return {
        "verdict": footprint.verdict,
        "tight": footprint.is_tight,
        "planned_micro_batch": size,
        "recompute": derived.plan.recompute,
        "gib_predicted": peak.value / GIB,
        "width": peak.high / peak.low,
        "gib_usable": footprint.usable_bytes / GIB,
        "step_width": None if step is None else step.high / step.low,
        **told,
    }


def is_right(row: Mapping[str, Any]) -> bool | None:
    """Return whether the verdict and the report say the same; None without a report."""
    if "outcome" not in row:
        return None
    return (
        row["verdict"]
        not in {"ran": ("does not fit", "refused"), "failed": ("fits",)}[row["outcome"]]
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return shares of verdicts, widths of intervals, and how many reports say the same."""
    planned = [row for row in rows if row["verdict"] != "refused"]
    widths = [row["width"] for row in planned]
    steps = [row["step_width"] for row in planned if row["step_width"] is not None]
    with_report = [row for row in rows if "outcome" in row]
    return {
        "questions": len(rows),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "may_not_fit_share": sum(row["verdict"] == "uncertain" for row in rows) / len(rows),
        "width_median": statistics.median(widths),
        "width_of_what_fits_median": statistics.median(
            row["width"] for row in planned if row["verdict"] == "fits"
        ),
        "step_width_median": statistics.median(steps) if steps else None,
        "reports": len(with_report),
        "reports_right": sum(bool(is_right(row)) for row in with_report),
    }


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return a table in Markdown."""
    yield "| model | method | device | tokens | pass | verdict | GiB | report | |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        gib = f"{row['gib_predicted']:.1f} of {row['gib_usable']:.1f}" if "width" in row else "-"
        report = ""
        if "outcome" in row:
            took = "" if row["gib"] is None else f" {row['gib']:.1f}"
            report = f"[{row['outcome']}{took}]({row['source']})"
        mark = {True: "", False: "differs", None: ""}[is_right(row)]
        notes = "; ".join(each for each in (mark, row.get("note", "")) if each)
        name = row["model"].rpartition("/")[2]
        yield (
            f"| {name} | {row['method']} | {row['device'].removeprefix('NVIDIA ')} |"
            f" {row['sequence_length']:,} | {row.get('planned_micro_batch', '-')} | {row['verdict']} |"
            f" {gib} | {report} | {notes} |"
        )


def main() -> None:
    """Ask, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    ends, rows = time.monotonic() + 60 * asked.minutes, list[dict[str, Any]]()
    questions = reported()
    questions += drawn(COUNT - len(questions), asked.seed)
    with kept_traces() as traces:
        for question in questions:
            if time.monotonic() > ends:
                print(f"cut off for want of time: {len(questions) - len(rows)} were not asked")
                break
            rows.append(answer(question, traces))
            print("\n".join(list(lines(rows))[-1:]), flush=True)
    found = summary(rows)
    print(json.dumps(found, indent=1))
    if not asked.no_record:
        write_record("sixty_questions", {"seed": asked.seed, **found, "rows": rows})


if __name__ == "__main__":
    main()
