"""Predicted beside measured time of optimizer steps on this CPU, in CPU time of one thread: `python
benchmarks/time_cpu.py`.

Each configuration is predicted from its trace and a calibration made right before its pair, then
really run with the training loop's own functions (`accumulate_gradients`, `guarded_update`) on
random weights. Calibrations are made between the configurations because other programs share the
machine's caches and memory, now more, now less. No rate is fitted on any of these configurations.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from brimful.hardware.calibrate import calibrate
from brimful.hardware.calibration import Calibration
from brimful.hardware.host import keep_freed_memory
from brimful.hardware.probe import cpu_device
from brimful.planning.step import EVALUATION_FACTOR
from brimful.planning.timing import StepTime, step_time
from brimful.rehearsal.models import config_of
from brimful.rehearsal.optimizers import optimizer_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.training import (
    Watcher,
    evaluate_batch,
    prepare,
    run_steps,
    without_garbage_collector,
)
from cpu_steps import MeasuredStep, steps_of
from record import write_record

TARGET = 0.15
"""Median error that the benchmark fails above."""
REPEATS = 5
PER_CALIBRATION = 2
"""Configurations that a calibration is for."""


def configurations() -> Mapping[str, MeasuredStep]:
    """Sizes x sequences x methods x recomputation x precision."""
    return steps_of("timed", loss_chunk=2048, attention="brimful_blocks")


def predict(chosen: MeasuredStep, measured: Calibration) -> StepTime:
    """Nothing of the configuration has run yet."""
    traces = StoredTraces(chosen.spec, None)
    return step_time(
        traces.work_at, [chosen.micro_batch] * 2, measured.rates, precision=chosen.spec.products
    )


class _Watch(Watcher):
    """CPU time at every phase."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float]] = []

    def begin(self, phase: str) -> None:
        self.phases.append((phase, time.process_time()))

    def second_step_s(self) -> float:
        """From the batch after the first optimizer step to the end of the second."""
        begun = Counter[str]()
        for phase, at_s in self.phases:
            begun[phase] += 1
            if (phase, begun[phase]) == ("inputs", 2):
                start_s = at_s
        return self.phases[-1][1] - start_s


def measure(chosen: MeasuredStep) -> tuple[list[float], list[float]]:
    """CPU seconds of optimizer steps with two micro-batches, and of evaluation batches; the first
    of each is left out.
    """
    spec = chosen.spec
    model = real_model(spec, config_of(spec))
    prepare(spec, model)
    optimizer = optimizer_of(
        spec, [parameter for parameter in model.parameters() if parameter.requires_grad]
    )
    steps_s, evaluations_s = [], []
    with without_garbage_collector():
        for _ in range(REPEATS + 1):
            watch = _Watch()
            run_steps(model, optimizer, spec, chosen.micro_batch, watch)
            steps_s.append(watch.second_step_s())
            watch = _Watch()
            evaluate_batch(model, spec, chosen.micro_batch * EVALUATION_FACTOR, watch)
            evaluations_s.append(watch.phases[-1][1] - watch.phases[0][1])
    return steps_s[1:], evaluations_s[1:]


def run(name: str, chosen: MeasuredStep, calibration: Calibration) -> dict[str, Any]:
    """Predict, then measure."""
    predicted = predict(chosen, calibration)
    steps_s, evaluations_s = measure(chosen)
    step_s, evaluation_s = float(np.median(steps_s)), float(np.median(evaluations_s))
    return {
        "configuration": name,
        "predicted_s": round(predicted.seconds, 4),
        "measured_s": round(step_s, 4),
        "error_percent": round(100 * (predicted.seconds / step_s - 1), 1),
        "spread_percent": round(100 * (max(steps_s) - min(steps_s)) / step_s, 1),
        "evaluation_predicted_s": round(predicted.evaluation_s, 4),
        "evaluation_measured_s": round(evaluation_s, 4),
        "evaluation_error_percent": round(100 * (predicted.evaluation_s / evaluation_s - 1), 1),
        "terms_s": {term: round(seconds, 4) for term, seconds in predicted.terms.items()},
        "matrix_gflop_per_s": {
            dtype: round(rate / 1e9, 1)
            for dtype, rate in calibration.rates.flop_per_s["matrix"].items()
        },
    }


def summary(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
    """Median and 90th percentile of the absolute error, and the median of the signed one;
    percent.
    """
    errors = np.array([row[key] for row in rows])
    return {
        "median": round(float(np.median(np.abs(errors))), 1),
        "p90": round(float(np.quantile(np.abs(errors), 0.9)), 1),
        "signed_median": round(float(np.median(errors)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", default="", help="configurations whose name holds this; writes no record"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    logging.set_verbosity_error()
    rows = []
    with TemporaryDirectory() as folder:
        for number, (name, chosen) in enumerate(
            (name, chosen) for name, chosen in configurations().items() if options.only in name
        ):
            if number % PER_CALIBRATION == 0:
                calibration = calibrate(cpu_device(), Path(folder), threads=1)
            rows.append(run(name, chosen, calibration))
            row = rows[-1]
            print(
                f"{name:74s} {row['predicted_s']:.3f} s / {row['measured_s']:.3f} s "
                f" {row['error_percent']:+5.1f} %  (spread {row['spread_percent']:.0f} %) "
                f" evaluation {row['evaluation_error_percent']:+5.1f} %",
                flush=True,
            )
    steps, evaluations = summary(rows, "error_percent"), summary(rows, "evaluation_error_percent")
    print(f"steps: {steps}  evaluation: {evaluations}  (absolute errors in percent)")
    if not options.only:
        write_record(
            "time_cpu",
            {
                "repeats": REPEATS,
                "step_error_percent": steps,
                "evaluation_error_percent": evaluations,
                "configurations": rows,
            },
        )
    if steps["median"] > 100 * TARGET:
        sys.exit(f"the median error is above {TARGET:.0%}")


if __name__ == "__main__":
    main()
