"""Peak memory and CPU time of a training step that recomputes nothing, cheap operators or whole
blocks, on this CPU.

    python benchmarks/recompute_cpu.py [--rounds 7]

Rules: the ways differ in `recompute` alone and run in turn, one after another in every round, with
the functions of the training loop. Peaks are those of torch's profiler, beside what the planner's
trace predicts. Time is that of the process on its cores, so that other programs change it little.
One thread. The first round warms up and is not counted.

A model of tensors so small that their arithmetic takes no time tells what it costs to watch
operators: the time by which the selective pass takes longer than the one that recomputes blocks,
for each operator that a step issues.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import BertConfig, LlamaConfig, PretrainedConfig
from transformers.utils import logging

from brimful.planning.search import WATCHED_S
from brimful.planning.step import Lora, Recompute, StepSpec, canonical
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.training import prepare, record_training, warm_up
from measured_steps import measure_steps
from record import summary, write_record

MICRO_BATCH = 4
WAYS: Mapping[str, Recompute] = {"nothing": False, "selective": "selective", "whole blocks": True}
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}


def _spec(config: PretrainedConfig, **changes: Any) -> StepSpec:
    values: dict[str, Any] = {"sequence_length": 256, "loss_chunk": 512, "cuda": False} | changes
    return StepSpec(config_json=canonical(config.to_dict()), **values)


def configurations() -> Mapping[str, Callable[[Recompute], StepSpec]]:
    """Steps by how they recompute."""
    llama, bert = LlamaConfig(**SIZES), BertConfig(**SIZES)
    return {
        "llama from scratch": lambda how: _spec(llama, recompute=how),
        "LoRA of llama": lambda how: _spec(llama, adapter=Lora(16), recompute=how),
        "BERT classifier": lambda how: _spec(
            bert, method="classify", options_json='{"labels": 2}', recompute=how
        ),
    }


def _memory(spec: StepSpec) -> dict[str, int]:
    config = config_of(spec)
    trace = record_training(spec, config, MICRO_BATCH)
    predicted = trace.live_E()[: trace.marks.get("evaluation")].max()  # only steps are measured
    measured = measure_steps(real_model(spec, config), spec, MICRO_BATCH).live_E().max()
    return {"predicted_bytes": int(predicted), "measured_bytes": int(measured)}


def _pass(spec: StepSpec) -> Callable[[], None]:
    """Return a forward and backward pass of a model of its own."""
    model = real_model(spec, config_of(spec))
    prepare(spec, model)
    return lambda: warm_up(model, spec, MICRO_BATCH)


def _cpu_s(call: Callable[[], None]) -> float:
    started_s = time.process_time()
    call()
    return time.process_time() - started_s


def measure(make: Callable[[Recompute], StepSpec], rounds: int) -> dict[str, Any]:
    """Return memory and time of every way."""
    memory = {way: _memory(make(how)) for way, how in WAYS.items()}
    passes = {way: _pass(make(how)) for way, how in WAYS.items()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds + 1):
        for way, call in passes.items():
            times[way].append(_cpu_s(call))
    counted = {way: each_s[1:] for way, each_s in times.items()}
    return {
        way: {
            **memory[way],
            "cpu_s": summary(counted[way]),
            "times_of_nothing": summary(
                [one / other for one, other in zip(counted[way], counted["nothing"], strict=True)]
            ),
        }
        for way in WAYS
    }


def watched_s(rounds: int) -> dict[str, float]:
    """Return the seconds that watching takes for each operator of a pass."""
    tiny = LlamaConfig(**SIZES | {"hidden_size": 32, "intermediate_size": 88, "vocab_size": 512})

    def make(how: Recompute) -> StepSpec:
        return _spec(tiny, sequence_length=32, loss="model", recompute=how)

    work = record_training(make(True), config_of(make(True)), MICRO_BATCH).work
    assert work is not None
    operators = float(work.part("micro-batch").launches_W.sum())
    passes = [_pass(make(how)) for how in ("selective", True)]
    times = [[_cpu_s(call) for call in passes] for _ in range(rounds + 1)][1:]
    return summary([(selective - whole) / operators for selective, whole in times])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    found = {}
    for name, make in configurations().items():
        found[name] = measure(make, options.rounds)
        for way, values in found[name].items():
            print(
                f"{name:20s} {way:12s} {values['predicted_bytes'] / 1e6:8.1f} MB predicted"
                f" {values['measured_bytes'] / 1e6:8.1f} measured  CPU"
                f" {values['cpu_s']['median']:.2f} s, {values['times_of_nothing']['median']:.2f} of"
                " nothing",
                flush=True,
            )
    watched = watched_s(3 * options.rounds)
    print(f"watching takes {1e6 * watched['median']:.1f} us an operator, assumed {1e6 * WATCHED_S}")
    values = {"micro_batch": MICRO_BATCH, "rounds": options.rounds, "watched_s": watched}
    write_record("recompute_cpu", {**values, "configurations": found})
    worst = max(
        abs(way["predicted_bytes"] / way["measured_bytes"] - 1)
        for each in found.values()
        for way in each.values()
    )
    ratios = [each["selective"]["times_of_nothing"]["median"] for each in found.values()]
    print(
        f"peaks within {100 * worst:.3f} %; selective {statistics.median(ratios):.2f} times as long"
    )


if __name__ == "__main__":
    main()
