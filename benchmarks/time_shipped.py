"""What plans use, on the published rows that it can take: `brimful.hardware.fitted` and
`brimful.planning.timing` as they are shipped.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.hardware import fitted
from brimful.planning.timing import StepTime, step_time
from time_model import board, work_of_one_gpu
from time_stack import TimedStack

COMPILED = ("compiled", "torchtitan", "cuda c")


def shipped_time(stack: TimedStack) -> StepTime | None:
    """Step time as a plan would say it; None where the shipped rates do not apply."""
    known = board(stack.device)
    rates = fitted.rates_of(
        known.device, power_w=known.power_w if np.isfinite(known.power_w) else None
    )
    if rates is None:
        return None
    work = work_of_one_gpu(stack)
    precision = "fp16" if stack.products == "fp16" else "bf16"
    return step_time(
        lambda _: work,
        (1,) * int(stack.accumulation),
        rates,
        precision=precision,
        compiled=stack.family in COMPILED,
    )


def shipped_summary(stacks: Sequence[TimedStack]) -> dict[str, Any]:
    """Errors over rows of one GPU, which the fit has seen, and the share inside the shipped
    interval.
    """
    shipped = fitted.efficiencies()
    triples = [
        (
            time,
            stack.measured_s,
            shipped.interval if stack.quantize == "no" else shipped.unpacking_interval,
        )
        for stack in stacks
        if stack.spread.gpus == 1 and (time := shipped_time(stack)) is not None
    ]
    pairs = [(time, measured_s) for time, measured_s, _ in triples]
    errors = np.array([time.seconds / measured_s - 1 for time, measured_s in pairs])
    ends = [
        (low * time.seconds, max(high * time.seconds, time.slowest_host_s))
        for time, _, (low, high) in triples
    ]
    inside = [
        low_s <= measured_s <= high_s
        for (low_s, high_s), (_, measured_s) in zip(ends, pairs, strict=True)
    ]
    widths = np.array([high_s / low_s for low_s, high_s in ends])
    alone = np.array([high / low for _, _, (low, high) in triples])
    return {
        "rows": len(pairs),
        "median_percent": round(100 * float(np.median(np.abs(errors))), 1),
        "ninetieth_percent": round(100 * float(np.quantile(np.abs(errors), 0.9)), 1),
        "bias_percent": round(100 * float(np.median(errors)), 1),
        "inside_interval_percent": round(100 * float(np.mean(inside)), 1),
        "high_over_low_median": round(float(np.median(widths)), 2),
        "wider_for_the_host": int(np.sum(widths > 1.001 * alone)),
    }
