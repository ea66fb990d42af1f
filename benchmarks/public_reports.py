"""What people told of memory in public, beside what `brimful plan` says: does it fit what ran, and not
what ran out of memory?

    python benchmarks/public_reports.py questions | recipes | rewards [--only WORDS] [--no-record]

Reports were listed before any of them was planned: what is stated, the address, and how the documented
step differs from brimful's own, which is the one that is planned.

- questions: sixty that people ask of a planner, about models of 135M to 70B parameters, full tuning, LoRA
  and QLoRA, 14 devices, and 1,024 to 32,768 tokens. Those of `sixty_questions.json` were answered in public;
  the others are drawn with a seed, so that every model, device, method and length is asked about. Right is
  what does not contradict the report. docs/questions.md is made of the record (`tables.py questions`).
- recipes: training recipes of `public_recipes.toml` with stated hardware. Micro-batch, length, recomputation
  and spread are fixed as documented; what is not stated is left to the plan. Right is a plan that surely fits
  what runs, or surely does not fit what fails; "uncertain" is neither right nor wrong.
- rewards: runs of GRPO on one GPU of `rewards_public.toml`, planned as `brimful plan FILE --on DEVICE` does,
  and judged like recipes. Beside the verdict stands what the update and what the drawing of answers takes.
"""

import argparse
import json
import random
import statistics
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from brimful.base.errors import BrimfulError
from brimful.base.units import GIB
from brimful.chains.devices import facts_of
from brimful.hardware import catalog
from brimful.hardware.groups import parse
from brimful.integrations.other_tools.job import read_job
from brimful.integrations.other_tools.planned import JobTraces, job_traces, look_up, plan_job
from brimful.integrations.other_tools.recognise import tool_named
from brimful.planning.derive import derive_with_memory
from brimful.planning.plan import Prediction
from brimful.planning.remedies import cheapest_remedy
from brimful.planning.specs import model_facts
from brimful.planning.spread import derive_spread
from brimful.planning.survey import Tracer
from brimful.recipe import Recipe, load
from brimful.rehearsal.kept_traces import kept_traces
from record import write_record

FOLDER = Path(__file__).parent
Row = dict[str, Any]
Report = Mapping[str, Any]
RIGHT = {"runs": "fits", "fails": "does not fit"}
CONTRADICTS = {"ran": ("does not fit", "refused"), "failed": ("fits",)}
SEED, COUNT, SEQUENCES = 22, 60, 16
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
ASKED = ("model", "method", "device", "sequence_length")
QUESTION = """
name: question
method: sft
sequence_length: {sequence_length}
batch: {{sequences: {sequences}}}
training: {{steps: 1000}}
model: {model}
data: {{path: examples.jsonl}}
optimizer: {{learning_rate: 1e-4}}
"""
MPT_VOCABULARY = 50368
FIXED = ("tokenizer=null", "training.steps=1000", "plan.compile=false")
"""Of published models in recipes; `quickstart` reads documents, so that rows are full."""


def questions() -> Iterable[Row]:
    """Return the questions that public reports answer, then drawn ones: each one asks as much that no
    earlier drawn one asked as any of 200. None is longer than its model can read.
    """
    found: list[Row] = json.loads((FOLDER / "sixty_questions.json").read_text(encoding="utf-8"))
    draw, seen = random.Random(SEED), Counter[object]()
    contexts = {
        name: model_facts(_recipe_of({"model": name, "sequence_length": 64}, 1)).context
        for name in MODELS
    }
    every = [
        dict(zip(ASKED, (model, method, device, length), strict=True))
        for model, method, device, length in product(MODELS, METHODS, DEVICES, LENGTHS)
        if length <= (contexts[model] or LENGTHS[-1])
    ]
    while len(found) < COUNT:
        tried = draw.sample(every, 200)
        chosen = min(tried, key=lambda each: sum(seen[value] for value in each.values()))
        found.append(chosen)
        seen.update(chosen.values())
    return found


def _recipe_of(question: Report, sequences: int, changes: Sequence[str] = ()) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "question.yaml"
        asked = {name: question[name] for name in ("model", "sequence_length")}
        path.write_text(QUESTION.format(**asked, sequences=sequences), encoding="utf-8")
        return load(str(path), list(changes))


def answered(question: Report, traces: Tracer) -> Row:
    """Return a question with brimful's answer."""
    size = question.get("micro_batch")
    row: Row = {name: question[name] for name in ASKED} | {"micro_batch": size}
    if "outcome" in question:
        row |= {name: question.get(name) for name in ("outcome", "gib", "source")}
        row["note"] = question.get("note", "")
    fixed = [] if size is None else [f"plan.micro_batch={size}"]
    changes = [*METHODS[question["method"]], *question.get("changes", ()), *fixed]
    device = catalog.get(question["device"])
    try:
        recipe = _recipe_of(question, SEQUENCES, changes)
        derived = derive_with_memory(recipe, device, traces, facts_of(device))
    except BrimfulError as error:
        return row | {"verdict": "refused", "reason": str(error)}
    footprint = derived.memory.at(size or derived.plan.micro_batches[0])
    step = derived.plan.predicted.get("step_time_s")
    row |= {
        "verdict": footprint.verdict,
        "tight": footprint.is_tight,
        "planned_micro_batch": size or derived.plan.micro_batches[0],
        "recompute": derived.plan.recompute,
        "gib_predicted": footprint.driver.value / GIB,
        "width": footprint.driver.high / footprint.driver.low,
        "gib_usable": footprint.usable_bytes / GIB,
        "step_width": None if step is None else step.high / step.low,
    }
    if footprint.verdict != "fits" and size is None:
        remedy = cheapest_remedy(derived.prepared, traces, recomputes=derived.plan.recompute)
        row["remedy"] = None if remedy is None else remedy.set
    return row


def of_questions(rows: Sequence[Report]) -> Row:
    """Return shares of verdicts, widths of intervals, and how many reports say the same."""
    planned = [row for row in rows if row["verdict"] != "refused"]
    steps = [row["step_width"] for row in planned if row["step_width"] is not None]
    told = [row for row in rows if "outcome" in row]
    return {
        "seed": SEED,
        "questions": len(rows),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "width_median": statistics.median(row["width"] for row in planned),
        "step_width_median": statistics.median(steps) if steps else None,
        "reports": len(told),
        "reports_right": sum(row["verdict"] not in CONTRADICTS[row["outcome"]] for row in told),
        "rows": rows,
    }


def recipes() -> Iterable[Report]:
    """Return the recipes that are documented to run, or to run out of memory."""
    found: list[Report] = tomllib.loads((FOLDER / "public_recipes.toml").read_text())["recipe"]
    return found


def words_of(recipe: Report) -> list[str]:
    """Return the words of `brimful plan` that ask for a recipe."""
    words = [f"sequence_length={recipe['length']}", f"plan.micro_batch={recipe['sequences']}"]
    words.append(f"batch.sequences={recipe['sequences'] * parse(recipe['devices']).count}")
    if "shape" in recipe:
        shape = ", ".join(f"{name}: {value}" for name, value in recipe["shape"].items())
        words.append(f"model={{architecture: gpt2, {shape}}}")
        words.append(f"tokenizer.vocabulary={MPT_VOCABULARY}")
        words += FIXED[1:]
    else:
        words += [f"model={recipe['model']}", *FIXED]
    if "recompute" in recipe:
        words.append(f"plan.recompute={str(recipe['recompute']).lower()}")
    if "spread" in recipe:
        words.append(f"plan.spread={recipe['spread']}")
    return ["plan", "quickstart", *words, *recipe.get("changes", []), "--on", recipe["devices"]]


def planned_recipe(recipe: Report, traces: Tracer) -> Row:
    """Return what the plan of a recipe says of memory."""
    words = words_of(recipe)
    row: Row = {name: recipe[name] for name in ("name", "address", "ends", "devices")}
    row |= {"command": ["brimful", *words], "other": recipe.get("other", "")}
    row |= {"found": recipe["found"]} if "found" in recipe else {}
    group = parse(recipe["devices"])
    try:
        planned = load(words[1], words[2 : words.index("--on")])
        facts = facts_of(group.device, model=model_facts(planned))
        derived = derive_spread(planned, group, traces, facts)
    except BrimfulError as error:
        return row | {"verdict": "refused", "reason": str(error)}
    said = derived.footprint
    row |= {
        "verdict": said.verdict,
        "spread": derived.plan.spread,
        "recompute": derived.plan.recompute,
        "usable_gib": round(said.usable_bytes / GIB, 2),
        "driver_gib": _gib(said.driver),
        "reserved_gib": _gib(said.reserved),
    }
    if "told_gib" in recipe:
        row["told_reserved_gib"] = recipe["told_gib"]
    return row


def _gib(peak: Prediction) -> list[float]:
    return [round(each / GIB, 2) for each in (peak.value, peak.low, peak.high)]


def of_recipes(rows: Sequence[Report]) -> Row:
    """Return how many verdicts are right, wrong or undecided, by how recipes end."""
    made: Row = {}
    for ends, right in RIGHT.items():
        verdicts = Counter(row["verdict"] for row in rows if row["ends"] == ends)
        made[ends] = {"recipes": sum(verdicts.values()), "right": verdicts[right], **verdicts}
    return {"counts": made, "recipes": rows}


def rewarded() -> Iterable[Report]:
    """Return the runs of GRPO: what their scripts say, as TRL's own keys."""
    found: list[Report] = tomllib.loads((FOLDER / "rewards_public.toml").read_text())["report"]
    return found


def planned_rewards(report: Report, traces: JobTraces) -> Row:
    """Return what the plan of a run of GRPO says."""
    told = ("name", "address", "device", "ends", "told_gib", "other", "found")
    row = {key: report[key] for key in told if key in report}
    device = catalog.get(report["device"])
    job = read_job(tool_named("trl"), report["keys"], native_bf16=device.abilities.bf16).job
    assert job is not None
    entry = plan_job(job, look_up(job.model), device, traces, searches=False)
    assert entry.sampled is not None
    step, drawn = entry.footprint, entry.sampled
    return row | {
        "verdict": entry.verdict,
        "is_right": entry.verdict == RIGHT[report["ends"]],
        "update": {"verdict": step.verdict, "gib": _gib(step.driver)},
        "sampling": {
            "verdict": drawn.verdict,
            "gib": [round(drawn.memory.value / GIB, 2)],
            "about": drawn.about,
        },
        "usable_gib": round(step.usable_bytes / GIB, 2),
    }


def of_rewards(rows: Sequence[Report]) -> Row:
    """Return how many verdicts are right."""
    return {"runs": len(rows), "right": sum(row["is_right"] for row in rows), "rows": rows}


Parts = tuple[
    str,
    Callable[[], Iterable[Report]],
    Callable[[Report, Any], Row],
    Callable[[Sequence[Report]], Row],
    Callable[[], Any],
]
KINDS: Mapping[str, Parts] = {
    "questions": ("sixty_questions", questions, answered, of_questions, kept_traces),
    "recipes": ("public_recipes", recipes, planned_recipe, of_recipes, kept_traces),
    "rewards": ("rewards_public", rewarded, planned_rewards, of_rewards, job_traces),
}
"""Name of the record, the reports, what is planned of one, a summary, and where traces are kept."""


def main() -> None:
    """Plan all reports of a kind, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--only", default="", help="only reports with these words in name or model")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    name, reports, ask, summary, keep = KINDS[asked.kind]
    rows: list[Row] = []
    with keep() as traces:
        for report in reports():
            if asked.only in report.get("name", report.get("model", "")):
                rows.append(ask(report, traces))
                print(json.dumps(rows[-1]), flush=True)
    found = summary(rows)
    print(json.dumps({key: value for key, value in found.items() if value is not rows}))
    if not (asked.no_record or asked.only):
        print(write_record(name, found))


if __name__ == "__main__":
    main()
