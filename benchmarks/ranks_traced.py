"""Peak memory of the first of several ranks that hold a model in parts: traced alone, beside real ranks.

    python benchmarks/ranks_traced.py [--only WORDS] [--runs 3]

Prediction and measurement share the step's code and nothing else: one runs on fake tensors in one
process whose collectives send nothing, the other on real weights in gloo ranks of this machine, one
thread each, under torch's profiler. Both count the bytes that torch's allocator is asked for, of the
first rank, whose part is the largest. What gloo, oneDNN and the generator of random numbers take
themselves is left out (`is_the_hosts`). The prediction is also
made from small traces, as plans make it: of any number of ranks where every weight's rows can be
divided. Fails where a peak is off by more than TOLERANCE.

A thread of gloo may hold a buffer of FSDP2 for longer than FSDP2 does, which makes one run's peak
higher than another's. So the ranks pause after each collective, and the least of some runs is
compared; all are recorded.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

from brimful.planning.step import StepSpec
from brimful.rehearsal.models import config_of, transformers_model
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.training import record_training
from brimful.training.sharding import shard
from brimful.training.world import World
from cpu_steps import steps_of
from measured_steps import Allocation, measure_steps
from record import write_record
from several_devices import on_ranks

TOLERANCE = 0.002
GLOO_COPIES = "c10d::_reduce_scatter_base_ > aten::clone"
"""Gloo adds up in a copy, which a thread of its own frees, where the profiler does not look."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
GENERATOR_BYTES = torch.get_rng_state().nbytes
"""Activation checkpointing keeps the state of the random numbers for every block: on the host."""
PAUSE_S = 0.005
MICRO_BATCH = 4


def is_the_hosts(allocation: Allocation) -> bool:
    """Return whether an allocation belongs to this CPU, not to a step: gloo's copies, states of the
    random numbers, and what oneDNN takes inside a product of matrices and frees before it returns
    (another number of bytes on another processor).
    """
    return (
        GLOO_COPIES in allocation.made_in
        or allocation.size_bytes == GENERATOR_BYTES
        or allocation.freed_in.endswith(PRODUCTS)
    )


def configurations() -> Mapping[str, StepSpec]:
    """Methods x precision x recomputation x accumulation x ranks."""
    steps = steps_of("ranks", micro_batch=MICRO_BATCH, sequence_length=128, loss_chunk=256)
    return {
        f"{name}, {ranks} ranks": replace(step.spec, ranks=ranks)
        for name, step in steps.items()
        for ranks in (2, 4)
    }


def pause_after_collectives() -> None:
    """Give gloo's threads time to let go of what was sent, in this process."""
    wait = dist.Work.wait

    def wait_and_pause(work: dist.Work, *arguments: Any) -> Any:
        result = wait(work, *arguments)
        time.sleep(PAUSE_S)
        return result

    dist.Work.wait = wait_and_pause  # type: ignore[assignment, method-assign]


def measured(spec: StepSpec, folder: Path) -> int:
    """Return the peak of the first rank, in bytes."""

    def act(world: World) -> None:
        pause_after_collectives()
        model = real_model(spec, config_of(spec))
        shard(transformers_model(model), world, torch.device("cpu"))
        steps = measure_steps(model, spec, MICRO_BATCH).without(is_the_hosts)
        peak = int(steps.live_E().max())
        (folder / str(world.rank)).write_text(json.dumps(peak))

    ends = on_ranks(spec.ranks, act)
    if any(ends):
        raise RuntimeError(f"ranks ended with {ends}; VERBOSE=1 says why")
    peak: int = json.loads((folder / "0").read_text())
    return peak


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="configurations with these words in the name")
    parser.add_argument("--runs", type=int, default=3, help="of each configuration")
    arguments = parser.parse_args()
    chosen = {name: spec for name, spec in configurations().items() if arguments.only in name}
    if not chosen:
        sys.exit(
            f"no configuration has {arguments.only!r} in its name: {', '.join(configurations())}"
        )
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, spec in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            runs = [measured(spec, Path(folder)) for _ in range(arguments.runs)]
        truth = min(runs)
        trace = record_training(spec, config_of(spec), MICRO_BATCH)
        traced = trace.live_E()[: trace.marks["between steps"]].max()
        small = StoredTraces(spec, None).at(MICRO_BATCH)
        small_peak = int(small.live_E()[: small.marks["between steps"]].max())
        row = {
            "configuration": name,
            "measured_bytes": runs,
            "traced_bytes": int(traced),
            "from_small_traces_bytes": small_peak,
        }
        error = small_peak / truth - 1
        rows.append(row | {"error": error})
        print(json.dumps(rows[-1]), flush=True)
    worst = max(abs(row["error"]) for row in rows)
    if not arguments.only:
        print(write_record("ranks_traced", {"largest_error": worst, "runs": rows}))
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
