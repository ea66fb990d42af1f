"""Learning from pairs on this CPU: peaks and step times, planned and then measured.

    python benchmarks/preferences_planned.py --data FOLDER/unit_conversion/rft_nickctomlin.json
        [--only WORDS] [--kept FILE] [--further]

The pairs are those of `preferences_cpu.py`; the model is SmolLM2-135M-Instruct cut to two layers.

Peaks: two optimizer steps (the second of two passes) on tensors without values as the planner has
them, from small traces, beside the same steps of the real model with its values, all of whose
allocations torch's profiler saw. Twice: on full rows, and on the longest pass of the run's own
data, whose prompts and padding the plan counts as scored. Bytes as asked for.

Step times and memory of the process: a real `brimful train` of `STEPS` steps in a process of its
own and one thread; predicted is the interval of the plan that it printed before it loaded the
model, measured is what its journal has, without what other programs took of the CPU.

`--further`: step times alone, of other lengths, batches, methods, steps and another seed than those that
the constants of timed passes were looked at with (`planning.timed.FEW_PASSES`); a record of its own.

With a file, configurations whose rows it holds are not measured again. The record is written once all
are there. Fails where a peak is off by more than `TOLERANCE` on full rows, or a step time is outside.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers

from brimful.hardware.probe import probe
from brimful.kinds.pairs import PairRunData
from brimful.kinds.run_data import ScoringOptions, gather
from brimful.model.obtained import folder_of_model
from brimful.planning.plan import Plan
from brimful.planning.specs import model_facts
from brimful.planning.step import StepSpec
from brimful.planning.survey import prepare
from brimful.recipe import load
from brimful.rehearsal.store import StoredTraces
from brimful.runs import read_run
from brimful.runs.measurements import measured
from measured_steps import measure_steps
from memory_cpu import steps_live
from preferences_cpu import MODEL, pairs_of_units
from record import write_record

TOLERANCE, STEPS, LAYERS = 0.001, 6, 2
RECIPE = """
name: run
method: dpo
model: BASE
sequence_length: 128
batch: {sequences: 8}
training: {steps: STEPS}
data: {path: DATA, validation: 0.1}
optimizer: {learning_rate: 1e-4, warmup: 1}
evaluation: {base: never, max_sequences: 2}
sample: {tokens: 1}
plan: {device: cpu, threads: 1, micro_batch: 2, compile: false, recompute: false, earlier_runs: false}
run: {folder: RUNS}
"""
LORA = "adapter={rank: 16, alpha: 32}"
NF4 = (LORA, "quantize=nf4")
IN_PASSES, KEPT = "preference.reference=in_passes", "preference.reference=kept"
WITHOUT = "preference.loss=simpo"
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "LoRA, padded, reference in every pass": (LORA, IN_PASSES, "plan.packing=padded"),
    "LoRA, packed, reference kept": (LORA, KEPT, "plan.packing=packed"),
    "LoRA, packed, no reference": (LORA, WITHOUT, "plan.packing=packed"),
    "NF4, padded, reference kept": (*NF4, KEPT, "plan.packing=padded"),
    "NF4, packed, reference in every pass": (*NF4, IN_PASSES, "plan.packing=packed"),
    "NF4, padded, no reference": (*NF4, WITHOUT, "plan.packing=padded"),
    "full, packed, reference kept": (KEPT, "plan.packing=packed"),
    "full, padded, no reference": (WITHOUT, "plan.packing=padded"),
}


FURTHER: dict[str, tuple[str, ...]] = {
    f"{words}, {length} positions, {count} samples, {packing}": (
        *changes,
        f"plan.packing={packing}",
        f"sequence_length={length}",
        f"batch.sequences={count}",
        "seed=77",
        "data.long_documents=drop",
        "training.steps=9",
    )
    for words, changes, length, count in (
        ("DPO, LoRA, reference in every pass", (LORA, IN_PASSES), 96, 6),
        ("DPO, NF4, reference kept", (*NF4, KEPT), 192, 5),
        ("DPO, full, no reference", (WITHOUT,), 112, 4),
        ("KTO, LoRA, reference in every pass", ("method=kto", LORA, IN_PASSES), 144, 12),
        ("demonstrations, LoRA", ("method=sft", "data.path=EXAMPLES", LORA), 104, 14),
    )
    for packing in ("padded", "packed")
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="as of preferences_cpu.py")
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    parser.add_argument("--kept", type=Path, help="rows that are there already, and new ones")
    parser.add_argument("--further", action="store_true", help="other lengths, methods and seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kept = options.kept or folder / "rows.jsonl"
        _prepare(folder, options.data)
        if options.further:
            _further(folder, options.only, kept)
            return
        found = rows_of(CONFIGURATIONS, options.only, kept, partial(_run, folder))
    rows = [found[name] for name in CONFIGURATIONS if name in found]
    worst = max(abs(row["full_rows"]["error_percent"]) for row in rows)
    outside = [row["configuration"] for row in rows if not row["step_time"]["inside"]]
    if len(rows) == len(CONFIGURATIONS):
        about = {"model": f"{MODEL}, {LAYERS} layers", "steps": STEPS, "tolerance": TOLERANCE}
        print(write_record("preferences_planned", about | {"configurations": rows}))
    if worst > 100 * TOLERANCE or outside:
        sys.exit(f"worst peak {worst:.4f} %; step times outside: {outside}")


def _further(folder: Path, only: str, kept: Path) -> None:
    def run(name: str, changes: tuple[str, ...]) -> dict[str, Any]:
        examples = str(folder / "examples.jsonl")
        changes = tuple(each.replace("EXAMPLES", examples) for each in changes)
        return _trained(folder, name, changes)[0]

    rows = [*rows_of(FURTHER, only, kept, run).values()]
    outside = [row["configuration"] for row in rows if not row["step_time"]["inside"]]
    if len(rows) == len(FURTHER):
        about = {"model": f"{MODEL}, {LAYERS} layers"}
        print(write_record("preferences_planned_further", about | {"configurations": rows}))
    if outside:
        sys.exit(f"step times outside: {outside}")


def rows_of(
    configurations: Mapping[str, tuple[str, ...]],
    only: str,
    kept: Path,
    run: Callable[[str, tuple[str, ...]], Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Run the configurations whose name holds `only` and whose rows are not kept yet, and return
    all rows that are kept then, by configuration.
    """
    lines = kept.read_text().splitlines() if kept.exists() else []
    rows = {row["configuration"]: row for row in map(json.loads, lines)}
    for name, changes in configurations.items():
        if only in name and name not in rows:
            rows[name] = {"configuration": name, **run(name, changes)}
            row = json.dumps(rows[name])
            print(row, flush=True)
            with kept.open("a") as file:
                file.write(f"{row}\n")
    return rows


def _prepare(folder: Path, data: Path) -> None:
    source = folder_of_model(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, num_hidden_layers=LAYERS)
    model.save_pretrained(folder / "base")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder / "base")
    pairs = pairs_of_units(data)
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    rows = [{"prompt": each["prompt"], "completion": each["chosen"]} for each in pairs]
    (folder / "examples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = RECIPE.replace("BASE", str(folder / "base")).replace("STEPS", str(STEPS))
    text = text.replace("DATA", str(folder / "pairs.jsonl")).replace("RUNS", str(folder / "runs"))
    (folder / "recipe.yaml").write_text(text)


def _trained(
    folder: Path, name: str, changes: tuple[str, ...]
) -> tuple[dict[str, Any], Plan, tuple[str, ...]]:
    """Train in a process of its own, and return its row, its plan and the changes."""
    changes = (*changes, f"run.name={name.replace(', ', '-').replace(' ', '-')}")
    recipe = str(folder / "recipe.yaml")
    words = [sys.executable, "-m", "brimful", "train", recipe, *changes]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    run = read_run(folder / "runs" / changes[-1].partition("=")[2])
    found, plan = measured(run), run.plan
    assert plan is not None
    row: dict[str, Any] = {"precision": plan.precision, "packing": plan.packing}
    for key, value in (("step_time", "step_time_s"), ("process", "peak_memory_bytes")):
        low, high = run.predicted_interval(value) or (0.0, 0.0)
        row[key] = {
            "predicted": run.predicted(value),
            "interval": [low, high],
            "measured": found[value],
            "inside": low <= found[value] <= high,
        }
    return row, plan, changes


def _run(folder: Path, name: str, changes: tuple[str, ...]) -> dict[str, Any]:
    """Train in a process of its own, and then measure steps here."""
    row, plan, changes = _trained(folder, name, changes)
    recipe = str(folder / "recipe.yaml")
    # As the run's own rates of this CPU have it.
    fixed = (*changes, f"plan.precision={plan.precision}")
    data = gather(load(recipe, fixed), str(folder / "base"))
    assert isinstance(data, PairRunData)
    device = torch.device("cpu")
    prepared = prepare(
        data.planned, probe("cpu"), model=model_facts(data.planned, len(data.tokenizer))
    )
    spec = prepared.spec(recompute=plan.recompute)
    model = data.build(plan, device)
    options = ScoringOptions(plan=plan, device=device, rows=2)
    data.keep_reference(model, Path(tempfile.mkdtemp(dir=folder)), {}, options)
    sequences, size = data.sequences(plan), plan.micro_batches[0]
    batches = [sequences.batch(8 * step, 8) for step in range(STEPS)]
    passes = [each for batch in batches for each in batch.micro_batches(plan.micro_batches)]
    longest = max(passes, key=lambda micro: micro.inputs_BT.numel())
    positions = spec.kind.rows_per_sample * spec.sequence_length
    traces = StoredTraces(spec, None)
    row["full_rows"] = _peaks(model, spec, traces, size, None)
    longest_rows = longest.inputs_BT.numel() / positions
    row["longest_pass"] = _peaks(model, spec, traces, longest_rows, longest)
    return row


def _peaks(
    model: Any, spec: StepSpec, traces: StoredTraces, rows: float, micro: Any
) -> dict[str, Any]:
    """The peak of steps on micro-batches of so many pairs, or on this one."""
    predicted = int(steps_live(traces.at(rows)).max())
    batch = None if micro is None else lambda: micro
    for each in model.parameters():
        each.grad = None
    steps = measure_steps(model, spec, int(rows), batch)
    seen = int(steps.live_E().max())
    return {
        "pairs": rows,
        "predicted_bytes": predicted,
        "measured_bytes": seen,
        "error_percent": round(100 * (predicted / seen - 1), 5),
    }


if __name__ == "__main__":
    main()
