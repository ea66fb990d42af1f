"""Peak memory of real training steps on this CPU beside the planner's prediction, to the byte.

    python benchmarks/memory_cpu.py [eager | rewards | compiled] [--only WORDS]

Updates on rewarded answers and compiled blocks have records of their own.

Rules: prediction and measurement share the step's code and nothing else: one runs on fake tensors,
the other on real weights under torch's profiler, whose allocation events are summed. Both count
bytes as asked for. The prediction is made twice, by tracing the model itself and from small traces
as the planner does; those may refuse, and the planner then traces the model itself. Blocks are compiled
as the training loop does, with Inductor and the C++ compiler of this machine, and measured after a first
pass; the predicted side runs Inductor's wrapper code on tensors without values. One thread: kernels take
scratch memory for each. Fails where a peak is off by more than `TOLERANCE`.

Not seen by the profiler, and so by neither side: what oneDNN and the C library take without torch's
allocator.
"""

import argparse
import json
import os
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils import logging

from brimful.planning.block_rows import Irregular
from brimful.planning.step import StepSpec
from brimful.planning.trace import Trace
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.training import record_training
from cpu_steps import steps_of
from measured_steps import measure_steps
from record import write_record

TOLERANCE = 0.002
MICRO_BATCH = 5
RECORDS = {"eager": "memory_cpu", "rewards": "memory_rewards", "compiled": "memory_compiled"}
"""Name of the record by group of steps in `cpu_steps.yaml`."""


def steps_live(trace: Trace) -> NDArray[np.int64]:
    """Bytes alive after each event of a trace's training steps; the evaluation batch that follows
    is not run here.
    """
    return trace.live_E()[: trace.marks.get("evaluation", len(trace.events_E))]


def compared(name: str, spec: StepSpec) -> dict[str, Any]:
    """Rehearse and measure one configuration."""
    config = config_of(spec)
    predicted = int(steps_live(record_training(spec, config, MICRO_BATCH)).max())
    try:
        from_small = int(steps_live(StoredTraces(spec, None).at(MICRO_BATCH)).max())
        told = "equal" if from_small == predicted else f"off by {from_small - predicted:+,} bytes"
    except Irregular as reason:
        told = f"refused: {reason}"
    steps = measure_steps(real_model(spec, config), spec, MICRO_BATCH)
    measured = int(steps.live_E().max())
    return {
        "configuration": name,
        "predicted_bytes": predicted,
        "measured_bytes": measured,
        "error_percent": round(100 * (predicted / measured - 1), 5),
        "measured_phase": steps.phases_E[int(steps.live_E().argmax())],
        "from_small_traces": told,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("group", nargs="?", choices=RECORDS, default="eager")
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    rows = []
    common = {"micro_batch": MICRO_BATCH, "sequence_length": 192, "loss_chunk": 384}
    for name, step in steps_of(options.group, **common).items():
        if options.only in name:
            rows.append(compared(name, step.spec))
            print(json.dumps(rows[-1]), flush=True)
    errors = [abs(row["error_percent"]) for row in rows]
    print(f"{len(rows)}: median error {np.median(errors):.4f} %, worst {max(errors):.4f} %")
    if not options.only:
        print(
            write_record(
                RECORDS[options.group], {"micro_batch": MICRO_BATCH, "configurations": rows}
            )
        )
    if max(errors) > 100 * TOLERANCE:
        sys.exit(f"a peak is off by more than {100 * TOLERANCE} %")


if __name__ == "__main__":
    main()
