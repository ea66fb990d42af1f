"""The devices to plan for, and what is known of them: rates, prices, memory in use."""

import gc
import time
from dataclasses import replace
from functools import partial
from typing import Any

from brimful.base.errors import DeviceError
from brimful.base.garbage import collector_off
from brimful.base.libraries import installed_version
from brimful.base.types import Numbers
from brimful.data.prepared_ahead import preparing_paused
from brimful.hardware import calibration, catalog, fitted, kept_rates
from brimful.hardware.device import Device
from brimful.hardware.groups import Group, growing, parse
from brimful.hardware.guessed import guessed_rates
from brimful.hardware.matrix_rates import matrix_rates, new_product_s
from brimful.hardware.process_memory import give_back_free_memory, unmapped_bytes
from brimful.hardware.rates import Rates
from brimful.hardware.residuals import residuals_of
from brimful.planning.cost import Conditions, conditions_of
from brimful.planning.derive import (
    Facts,
)
from brimful.planning.step import StepSpec
from brimful.planning.timed import (
    ENOUGH_FOR_TWO_S,
    StepTimer,
    TimedPasses,
    TimedStep,
    basis_of_passes,
)
from brimful.recipe import PlanChoices, Recipe

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


def groups_of(recipe: Recipe, on: str, up_to: int | None = None) -> list[Group]:
    """The devices that "here", "all" or a list of names stand for, each once; several of a kind
    that share a job are one group (`T4,8 x H100`).

    Args:
        recipe: What to train.
        on: Devices as the command line names them.
        up_to: Each single device also in groups of 2, 4, ... up to so many.

    Raises:
        DeviceError: no such device.
    """
    if on == "all":
        groups = [Group(catalog.get(name)) for name in catalog.names()]
    else:
        names = [name.strip() for name in on.split(",") if name.strip()]
        if not names:
            raise DeviceError(
                "--on names no device. Write here, all, or names separated by commas; `brimful"
                " devices` lists them."
            )
        groups = [Group(here(recipe)) if name == "here" else parse(name) for name in names]
    if up_to is not None:
        groups = [each for group in groups for each in growing(group.device, up_to)]
    return list({group.name: group for group in groups}.values())


def here(recipe: Recipe) -> Device:
    """The device of this machine that a recipe would use; a CPU with its matrix rates."""
    return this_machine(recipe.plan)


def this_machine(plan: PlanChoices) -> Device:
    """The device of this machine that a plan with these choices would use; a CPU with its matrix
    rates, scaled to the threads that are fixed.
    """
    with collector_off():
        from brimful.hardware.probe import probe  # noqa: PLC0415 - brings torch

    device = probe(plan.device)
    if device.kind != "cpu":
        return device
    measured = with_matrix_rates(device)
    threads = plan.threads
    if threads == "auto" or device.threads is None:
        return measured
    rates = {
        dtype: rate * min(threads, device.threads) / device.threads
        for dtype, rate in measured.dense_flop_per_s.items()
    }
    return replace(measured.with_rates(rates, f"for {threads} threads"), threads=threads)


def process_bytes(device: Device) -> int:
    """Memory this process holds already, where the device shares it. What earlier work left free
    in the process is given back first, so that it does not count.
    """
    if device.kind != "cpu":
        return 0
    gc.collect()
    give_back_free_memory()
    return unmapped_bytes()


def facts_of(device: Device, *, measures: bool = False, **known: Any) -> Facts:
    """What is known of a device beside its row: memory this process holds, its rates, and how
    earlier runs compared with their predictions.

    Args:
        device: Device to plan for.
        measures: Passes of the step are timed on this machine's CPU where none are kept; takes
            seconds.
        known: Further fields of Facts.
    """
    rates = rates_of(device)
    correction = calibration.NOT_CORRECTED
    if rates is not None and device.is_present:
        basis = calibration.basis_of(rates, device)
        correction = calibration.correction(
            device.name, "step_time_s", basis=basis, share=rates.share
        )
    if device.is_present and device.kind == "cpu" and device.abilities.bf16:
        known["new_product_s"] = new_product_s()
    return Facts(
        process_bytes=process_bytes(device),
        rates=rates,
        correction=correction,
        timer=step_timer(device, measures=measures),
        residuals_of=partial(residuals_of, device.name) if device.is_present else None,
        **known,
    )


def rates_of(device: Device) -> Rates | None:
    """The device's rates: measured on it, else fitted on published runs, else assumed; None where
    nothing is known.
    """
    calibrated = calibration.load(device, device.threads) if device.is_present else None
    return calibrated.rates if calibrated else fitted.rates_of(device) or guessed_rates(device)


def conditions(device: Device, prices: Numbers | None = None) -> Conditions:
    """What is known of runs on a device: price and power from the catalog, the disk from its
    calibration.
    """
    calibrated = calibration.load(device) if device.is_present else None
    disk = calibrated.extras.get("disk_bytes_per_s") if calibrated else None
    return conditions_of(device.name, prices, disk_bytes_per_s=disk)


def conditions_of_group(group: Group, prices: Numbers | None = None) -> Conditions:
    """The same of several devices: they are rented and draw power together."""
    one = conditions(group.device, prices)
    price = one.price
    if price is not None:
        price = replace(price, usd_per_hour=group.count * price.usd_per_hour)
    power_w = None if one.power_w is None else group.count * one.power_w
    return replace(one, price=price, power_w=power_w)
