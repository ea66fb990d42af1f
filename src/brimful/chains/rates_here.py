"""The rates of this machine: what was kept from earlier starts, else measured now, in seconds."""

import time
from dataclasses import replace

from brimful.base.version import installed_version
from brimful.data.prepared_ahead import preparing_paused
from brimful.hardware import calibration, kept_rates
from brimful.hardware.device import Device
from brimful.hardware.matrix_rates import matrix_rates
from brimful.planning.step import StepSpec
from brimful.planning.timed import (
    ENOUGH_FOR_TWO_S,
    StepTimer,
    TimedPasses,
    TimedStep,
    basis_of_passes,
)

LEAST_MEASURE_S = 0.1
"""With less time nothing is timed: making the model takes as long."""


def with_matrix_rates(device: Device) -> Device:
    """Return a CPU with the rates of its matrix products, and bf16 among its abilities where that
    is faster by them. Kept rates while they hold, else measured, which takes about half a second.
    """
    with preparing_paused():
        matrix = matrix_rates(device.name)
    source = "matrix rates measured"
    if matrix.lost_share >= kept_rates.BUSY_FROM:
        source += (
            f" while other programs took {matrix.lost_share:.0%} of the processor time, so they are"
            " measured again at the next start"
        )
    rates = {dtype: (device.threads or 1) * rate for dtype, rate in matrix.flop_per_s.items()}
    measured = device.with_rates(rates, source)
    return replace(measured, abilities=replace(device.abilities, bf16=matrix.bf16_pays))


def step_timer(device: Device, *, measures: bool) -> StepTimer | None:
    """Return what gives the timed passes of a step on this machine's CPU; None for other devices.

    Args:
        device: Device that the plan is for; its threads are used.
        measures: Passes that are not kept, or no longer hold, are timed; else only kept ones are
            given.
    """
    if device.kind != "cpu" or not device.is_present or device.threads is None:
        return None
    threads = device.threads

    def timed(spec: StepSpec, micro_batch: int, seconds: float, scored: float) -> TimedStep | None:
        key = f"{_versions()} {threads} threads, {micro_batch} x {spec.key()}"
        if scored < 1:
            key += f" {scored:.3f} scored"
        passes, is_sound = _kept(device.name, key, seconds)
        if measures and not is_sound and seconds >= LEAST_MEASURE_S:
            from brimful.rehearsal.timed_steps import time_passes  # noqa: PLC0415 - brings torch

            measured = time_passes(spec, micro_batch, seconds, threads, scored)
            if measured is not None:
                kept_rates.keep_step(device.name, key, measured.to_json())
                passes = measured
        if passes is None:
            return None
        basis = basis_of_passes(passes, threads)
        correction = calibration.correction(
            device.name, "step_time_s", basis=basis, share=passes.share
        )
        return TimedStep(passes, correction)

    return timed


def _kept(device_name: str, key: str, seconds: float) -> tuple[TimedPasses | None, bool]:
    """Return kept passes, and whether they still hold where so many seconds could be spent on
    timing them again.
    """
    kept = kept_rates.read_kept(device_name)
    stored = kept.steps.get(kept_rates.digest(key))
    if stored is None:
        return None, False
    try:
        passes = TimedPasses.from_json(stored)
    except (KeyError, TypeError, ValueError):
        return None, False
    is_poor = passes.is_in_proportion and seconds >= ENOUGH_FOR_TWO_S
    return passes, kept.is_fresh(passes.made, passes.lost_share, time.time()) and not is_poor


def _versions() -> str:
    return " ".join(installed_version(name) for name in ("torch", "transformers"))
