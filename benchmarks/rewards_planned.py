"""Learning from rewards on this CPU: phases of a round, planned and then measured.

    python benchmarks/rewards_planned.py [--only WORDS] [--kept FILE]

Peaks (`PEAKS`, SmolLM2-135M-Instruct cut to `LAYERS` layers): bytes of tensors as asked for, all of
whose allocations torch's profiler saw in two rounds, beside those that the plan counts. In the first
round products are tried once. Answers end by their length alone and questions are as long as the
rows, every second one by a token less, so that both speak of the same texts and rows differ, as they
do. Scoring is compared for the longest pass of the answers, on a straight line between the next
passes that plans know where they know full rows alone; plans count full ones (`full_pass_bytes`).
Optimizer states are left out.

Times (`SIZES`, the whole model): a real `brimful train` of two rounds in a process of its own, whose
plan comes before it loads the model, and two rounds drawn here by that plan: CPU seconds of the
phases of the second round, of the update as the run's own journal has it (without what other programs
took), and of the held-out answers, beside the intervals of the plan. The reward is a digit that about
half of the answers hold.

With a file, configurations whose rows it holds are not measured again. The record says which are not
measured. Fails where a peak is off by more than `TOLERANCE`, or a round's time or the memory of a
process is outside.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from torch.profiler import ProfilerActivity, profile, record_function

from brimful.data.example_batches import ExampleBatch
from brimful.generation.quick_blocks import filled_rows
from brimful.hardware.probe import probe
from brimful.kinds.rewarded import RewardedRunData
from brimful.kinds.run_data import ScoringOptions, gather
from brimful.model.obtained import folder_of_model
from brimful.planning.derive import Facts, derive
from brimful.planning.memory import scored_bytes
from brimful.planning.rounds import AnswerRounds
from brimful.planning.specs import model_facts
from brimful.planning.step import EVALUATION_FACTOR
from brimful.planning.survey import prepare
from brimful.recipe import load
from brimful.rehearsal.kept_traces import kept_traces
from brimful.rehearsal.store import StoredTraces
from brimful.runs import read_run
from brimful.runs.measurements import measured
from brimful.selection.rewarded import AnswerWriter
from measured_steps import read_profile, storage_bytes
from preferences_planned import rows_of
from record import write_record

MODEL, LAYERS, TOLERANCE = "smollm2-135m-instruct", 6, 0.01
PATTERN = "(?s).*[05].*"
RECIPE = """
name: run
method: grpo
model: BASE
sequence_length: 116
batch: {sequences: 16}
training: {steps: 2}
data: {path: DATA, validation: 0.05}
optimizer: {learning_rate: 1e-5, warmup: 1}
rewards: {verifiers: {regex: 1.0}, samples_per_prompt: 4, max_new_tokens: 64}
evaluation: {base: never, max_sequences: 8}
sample: {tokens: 1}
plan: {device: cpu, threads: 1, compile: false, recompute: false, earlier_runs: false}
run: {folder: RUNS}
"""
LORA, AGAIN = "adapter={rank: 16, alpha: 32}", "rewards.passes=2"
NF4, FP32, BF16 = "quantize=nf4", "plan.precision=fp32", "plan.precision=bf16"
PEAKS: dict[str, tuple[str, ...]] = {
    "LoRA, bf16": (LORA, BF16),
    "LoRA, fp32, scored in every round": (LORA, FP32, AGAIN),
    "NF4, bf16": (LORA, NF4, BF16),
    "NF4, fp32": (LORA, NF4, FP32),
    "full, bf16, 64 answers": (BF16, "batch.sequences=64"),
    "full, fp32, scored in every round": (FP32, AGAIN),
}
SIZES: dict[str, tuple[str, ...]] = {
    f"{answers} answers of at most {tokens}": (
        LORA,
        f"batch.sequences={answers}",
        f"rewards.max_new_tokens={tokens}",
        f"sequence_length={52 + tokens}",
    )
    for answers, tokens in ((4, 64), (16, 24), (16, 64))
}
PHASES = ("sampling", "verifying", "scoring")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    parser.add_argument("--kept", type=Path, help="rows that are there already, and new ones")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kept = options.kept or folder / "rows.jsonl"
        _prepare(folder)
        found = rows_of(PEAKS | SIZES, options.only, kept, partial(_run, folder))
    peaks, sizes = ([found[name] for name in names if name in found] for names in (PEAKS, SIZES))
    off = {
        f"{row['configuration']}: {name}": each["error_percent"]
        for row in peaks
        for name, each in row["peaks"].items()
        if abs(each["error_percent"]) > 100 * TOLERANCE
    }
    outside = [
        row["configuration"]
        for row in sizes
        if not row["times"]["round"]["inside"] or not row["process"]["inside"]
    ]
    if peaks and sizes:
        about = {
            "model": MODEL,
            "layers_of_peaks": LAYERS,
            "tolerance": TOLERANCE,
            "not_measured": [name for name in PEAKS | SIZES if name not in found],
        }
        print(write_record("rewards_planned", about | {"peaks": peaks, "sizes": sizes}))
    if off or outside:
        sys.exit(f"peaks: {off}; outside: {outside}")


def _prepare(folder: Path) -> None:
    """The model whole and cut, and questions that are as long as the longest one."""
    source = folder_of_model(MODEL)
    (folder / "whole").symlink_to(source.resolve())
    model = transformers.AutoModelForCausalLM.from_pretrained(source, num_hidden_layers=LAYERS)
    model.save_pretrained(folder / "cut")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder / "cut")
    text = RECIPE.replace("RUNS", str(folder / "runs")).replace("DATA", str(folder / "asked.jsonl"))
    (folder / "recipe.yaml").write_text(text)
    units = ["data.path=builtin:unit-conversion-small", "data.max_documents=200"]
    own = [f"model={folder / 'cut'}", "rewards.verifiers={number: 1.0}"]
    data = gather(load(str(folder / "recipe.yaml"), [*units, *own]), str(folder / "cut"))
    assert isinstance(data, RewardedRunData)
    asked = [
        {"prompt": each.text, "completion": PATTERN}
        for each in [*data.questions["train"], *data.questions["validation"]]
    ]
    (folder / "asked.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked))


def _run(folder: Path, name: str, changes: tuple[str, ...]) -> dict[str, Any]:
    """Peaks of a planned run's phases here, or those of one that is trained in a process of its own
    and then drawn here.
    """
    base, said = folder / ("cut" if name in PEAKS else "whole"), name.replace(",", "").split()
    changes = (*changes, f"model={base}", f"run.name={'-'.join(said)}")
    recipe, device = str(folder / "recipe.yaml"), torch.device("cpu")
    if name in PEAKS:
        data = gather(load(recipe, changes), str(base))
        assert isinstance(data, RewardedRunData)
        facts = Facts(vocabulary=len(data.tokenizer), train_sequences=data.train_rows)
        with kept_traces() as traces:
            plan = derive(data.planned, probe("cpu"), traces, facts)
        model = data.build(plan, device)
        options = ScoringOptions(plan=plan, device=device, rows=8)
        data.keep_reference(model, Path(tempfile.mkdtemp(dir=folder)), {}, options)
        return {"precision": plan.precision, "peaks": _peaks(data, plan, model)}
    words = [sys.executable, "-m", "brimful", "train", recipe, *changes]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    run = read_run(folder / "runs" / changes[-1].partition("=")[2])
    assert run.plan is not None
    data = gather(load(recipe, [*changes, f"plan.precision={run.plan.precision}"]), str(base))
    assert isinstance(data, RewardedRunData)
    found = measured(run)
    low, high = run.predicted_interval("peak_memory_bytes") or (0.0, 0.0)
    process = {
        "predicted": run.predicted("peak_memory_bytes"),
        "interval": [low, high],
        "measured": found["peak_memory_bytes"],
        "inside": low <= found["peak_memory_bytes"] <= high,
    }
    model = data.build(run.plan, device)
    options = ScoringOptions(plan=run.plan, device=device, rows=8, max_sequences=8)
    data.keep_reference(model, Path(tempfile.mkdtemp(dir=folder)), {}, options)
    times = _times(data, run.plan, model, found["step_time_s"], options)
    return {"precision": run.plan.precision, "process": process, "times": times}


def _peaks(data: RewardedRunData, plan: Any, model: Any) -> dict[str, Any]:
    """Bytes of tensors in the phases of two rounds, planned and seen."""
    writes, scores = AnswerWriter.write, RewardedRunData._scored
    longest = max(len(each.prompt_ids) for each in data.questions["train"])
    group = data.rules.samples_per_prompt

    def write(self: Any, asks: Any, *others: Any) -> bool:
        same = [
            replace(each, question=_as_long(each.question, longest - each.number // group % 2))
            for each in asks
        ]
        with record_function("brimful phase drawing"):
            pass
        return writes(replace(self, stop_ids=frozenset()), same, *others)

    positions: list[int] = []
    passes = ExampleBatch.micro_batches

    def counted(self: ExampleBatch, sizes: Any) -> Iterator[Any]:
        for micro in passes(self, sizes):
            positions.append(micro.inputs_BT.numel())
            yield micro

    def scored(self: Any, *others: Any) -> Any:
        with record_function("brimful phase scoring"):
            pass
        found = scores(self, *others)
        with record_function("brimful phase after"):
            pass
        return found

    size, seen = data.recipe.effective_batch, []
    rounds = AnswerRounds(data.planned, _without_states(plan), 2**40)
    with (
        patch.object(AnswerWriter, "write", write),
        patch.object(RewardedRunData, "_scored", scored),
        patch.object(ExampleBatch, "micro_batches", counted),
    ):
        filled_rows.cache_clear()
        for number in range(2):
            data._compared = 0
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                data.draw(number * rounds.rules.updates * size, lambda: False)
            seen.append(read_profile(profiler, storage_bytes(model)).peaks())
    drawn = rounds.drawing(1)
    prepared = prepare(
        data.planned, probe("cpu"), model=model_facts(data.planned, len(data.tokenizer))
    )
    traces = StoredTraces(prepared.spec(recompute=plan.recompute), None)

    def scored_at(rows: float) -> int:
        return scored_bytes(traces.at(rows / EVALUATION_FACTOR))

    longest_pass = max(positions) / data.recipe.sequence_length
    below = longest_pass // EVALUATION_FACTOR * EVALUATION_FACTOR
    above = below + EVALUATION_FACTOR
    of_longest = scored_at(longest_pass)
    if of_longest == scored_at(above):  # irregular: rows count as full
        share = (longest_pass - below) / (above - below)
        of_longest = round((1 - share) * scored_at(below) + share * of_longest)
    scoring = max(each["scoring"] for each in seen)
    return {
        "drawing": _beside(drawn.tensors_bytes, seen[0]["drawing"]),
        "scoring": _beside(of_longest, scoring)
        | {"full_pass_bytes": scored_at(plan.micro_batches[0])},
    }


def _as_long(question: Any, tokens: int) -> Any:
    ids = question.prompt_ids
    return replace(question, prompt_ids=(*ids, *ids)[:tokens])


def _without_states(plan: Any) -> Any:
    terms = {name: size for name, size in plan.memory_terms.items() if name != "optimizer states"}
    return replace(plan, memory_terms=terms)


def _beside(predicted: int, seen: int) -> dict[str, float]:
    error = round(100 * (predicted / seen - 1), 4)
    return {"predicted_bytes": predicted, "measured_bytes": seen, "error_percent": error}


def _times(
    data: RewardedRunData, plan: Any, model: Any, update_s: float, options: ScoringOptions
) -> dict[str, Any]:
    """CPU seconds of the second round and of held-out answers, beside the plan's intervals."""
    size, of_process = data.recipe.effective_batch, SimpleNamespace(perf_counter=time.process_time)
    with patch("brimful.kinds.rewarded.time", of_process):
        for number in range(2):
            data._compared = 0
            data.draw(number * size, lambda: False)
        held_out = data.score(model, "validation", options)
    assert data._round is not None
    took = dict(data._round.found["seconds"])
    rounds = AnswerRounds(data.planned, plan, 2**40)
    planned, step = rounds.times(1), plan.predicted["step_time_s"]
    found = {name: _inside(planned[f"{name}_time_s"], took[name]) for name in PHASES}
    found["updating"] = _inside(step, update_s)
    ends = [
        sum(getattr(each, end) for each in (*planned.values(), step))
        for end in ("value", "low", "high")
    ]
    whole = SimpleNamespace(value=ends[0], low=ends[1], high=ends[2])
    found["round"] = _inside(whole, sum(took.values()) + update_s)
    answered = rounds.held_out(min(8, data.validation_count)).time_s
    found["held_out"] = _inside(answered, held_out.seconds)
    signal = data._round.teaches_A.mean()
    return found | {"answers_that_teach": float(signal), "loads": os.getloadavg()[0]}


def _inside(planned: Any, took_s: float) -> dict[str, Any]:
    return {
        "predicted_s": planned.value,
        "interval_s": [planned.low, planned.high],
        "measured_s": took_s,
        "inside": planned.low <= took_s <= planned.high,
    }


if __name__ == "__main__":
    main()
