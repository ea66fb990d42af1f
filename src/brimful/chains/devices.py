"""The devices to plan for, and what is known of them: rates, prices, memory in use."""

import gc
from dataclasses import replace
from functools import partial
from typing import Any

from brimful.base.errors import DeviceError
from brimful.base.garbage import collector_off
from brimful.base.types import Numbers
from brimful.chains.rates_here import step_timer, with_matrix_rates
from brimful.hardware import calibration, catalog, fitted
from brimful.hardware.device import Device
from brimful.hardware.groups import Group, growing, parse
from brimful.hardware.guessed import guessed_rates
from brimful.hardware.matrix_rates import new_product_s
from brimful.hardware.process_memory import give_back_free_memory, unmapped_bytes
from brimful.hardware.rates import Rates
from brimful.hardware.residuals import residuals_of
from brimful.planning.cost import Conditions, conditions_of
from brimful.planning.derive import (
    Facts,
)
from brimful.recipe import PlanChoices, Recipe


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
    correction = None
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
