"""What plans use, on the published rows that it can take: `brimful.hardware.fitted` and
`brimful.planning.timing` as they are shipped.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.hardware import fitted
from brimful.planning.timing import step_time
from time_model import board, work_of_one_gpu
from time_stack import TimedStack

COMPILED = ("compiled", "torchtitan", "cuda c")


def shipped_seconds(stack: TimedStack) -> float | None:
    """Step time as a plan would say it; None where the shipped rates do not apply."""
    known = board(stack.device)
    rates = fitted.rates_of(
        known.device, power_w=known.power_w if np.isfinite(known.power_w) else None
    )
    if rates is None:
        return None
    work = work_of_one_gpu(stack)
    precision = "fp16" if stack.products == "fp16" else "bf16"
    time = step_time(
        lambda _: work,
        (1,) * int(stack.accumulation),
        rates,
        precision=precision,
        compiled=stack.family in COMPILED,
    )
    return time.seconds


def shipped_summary(stacks: Sequence[TimedStack]) -> dict[str, Any]:
    """Errors over rows of one GPU, which the fit has seen, and the share inside the shipped
    interval.
    """
    low, high = fitted.efficiencies().interval
    pairs = [
        (seconds, stack.measured_s)
        for stack in stacks
        if stack.spread.gpus == 1 and (seconds := shipped_seconds(stack)) is not None
    ]
    errors = np.array([seconds / measured_s - 1 for seconds, measured_s in pairs])
    inside = np.mean([low <= measured_s / seconds <= high for seconds, measured_s in pairs])
    return {
        "rows": len(pairs),
        "median_percent": round(100 * float(np.median(np.abs(errors))), 1),
        "ninetieth_percent": round(100 * float(np.quantile(np.abs(errors), 0.9)), 1),
        "bias_percent": round(100 * float(np.median(errors)), 1),
        "inside_interval_percent": round(100 * float(inside), 1),
    }
