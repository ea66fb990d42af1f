"""The catalogs of devices and of published models, as rows and as tables for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.base.discover import did_you_mean
from brimful.base.env import hub_cache_folder, runs_folder
from brimful.base.errors import RequestError
from brimful.base.text import plural
from brimful.base.types import Numbers
from brimful.base.units import format_bytes, format_count, format_money
from brimful.hardware import catalog as device_catalog
from brimful.hardware.naming import short_name
from brimful.model import catalog as model_catalog
from brimful.model.at_hand import OwnModel, cached_models, own_models
from brimful.model.catalog import ModelRow, PackagedModel
from brimful.model.obtained import is_downloaded
from brimful.report.table import Table, terminal_lines

MOST_NAME_COLUMNS = 41
"""A longer model id stands on a line of its own."""


@dataclass(frozen=True)
class CatalogDevice:
    """A device to plan for. Its fields, in this order, are the keys of the JSON."""

    name: str
    short_name: str
    kind: str
    memory_bytes: int
    bandwidth_bytes_per_s: float | None
    dense_flop_per_s: Numbers
    power_w: float | None
    usd_per_hour: float | None
    price_read: str | None
    source: str
    uncertain: Sequence[str]


@dataclass(frozen=True)
class CatalogModel:
    """A model to plan for or to tune. Its fields, in this order, are the keys of the JSON.

    Attributes:
        at_hand: Kind of place where it lies on this disk: "run", "package" or "hub cache".
    """

    id: str
    parameters: int
    context: int | None
    licence: str | None
    gated: bool
    at_hand: str | None


def find_devices(words: str) -> list[CatalogDevice]:
    """Return the devices whose name has these words; all for none.

    Raises:
        RequestError: there are none.
    """
    names = device_catalog.having(words)
    if not names:
        raise RequestError(
            f"no device of the catalog is called {words!r}"
            f"{did_you_mean(words, [*map(short_name, device_catalog.names())])} `brimful devices`"
            " without a word lists all."
        )
    return [_device(name) for name in names]


def _device(name: str) -> CatalogDevice:
    device, price = device_catalog.get(name), device_catalog.price_of(name)
    return CatalogDevice(
        name=name,
        short_name=short_name(name),
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        dense_flop_per_s=dict(device.dense_flop_per_s),
        power_w=device_catalog.power_of(name),
        usd_per_hour=price.usd_per_hour if price else None,
        price_read=price.read if price else None,
        source=device.source,
        uncertain=list(device.uncertain),
    )


def device_lines(devices: Sequence[CatalogDevice], width: int) -> list[str]:
    """Return a line for each device; exact names only where the terminal is wide enough."""
    rows = tuple(
        (
            each.short_name,
            format_bytes(each.memory_bytes),
            _bandwidth(each.bandwidth_bytes_per_s),
            "" if each.usd_per_hour is None else f"{format_money(each.usd_per_hour)}/h",
            each.name,
        )
        for each in devices
    )
    table = Table(("name for --on", "memory", "bandwidth", "price", "full name"), rows)
    lines = terminal_lines(table)
    if max(map(len, lines)) > width:
        lines = terminal_lines(table.without_column("full name"))
    read = max((each.price_read for each in devices if each.price_read), default="")
    notes = [
        "Example: brimful plan quickstart --on " + devices[0].short_name,
        f"Catalog of {device_catalog.read_until()}.",
    ]
    if read:
        notes.append(f"Prices: one on-demand offer each, as read by {read}; --price sets yours.")
    return [*lines, "", *notes]


def _bandwidth(bytes_per_s: float | None) -> str:
    return "" if bytes_per_s is None else f"{bytes_per_s / 1e9:,.0f} GB/s"


def find_models(words: str) -> list[CatalogModel]:
    """Return own models, then published ones, whose id has all these words as parts; all for none.

    Raises:
        RequestError: there are none.
    """
    parts = words.casefold().split()
    cached = {name.casefold() for name in cached_models(hub_cache_folder())}
    found = [
        *map(_own, own_models(runs_folder())),
        *map(_packaged, model_catalog.packages()),
        *(_published(row, row.name.casefold() in cached) for row in model_catalog.published()),
    ]
    shown = [each for each in found if all(part in each.id.casefold() for part in parts)]
    if not shown:
        close = did_you_mean(words, [each.id for each in found])
        raise RequestError(
            f"no model of the catalog has {words!r} in its id{close} `brimful models` without a"
            " word lists all; other models are found on the hub by their id, or in a folder."
        )
    return shown


def _own(model: OwnModel) -> CatalogModel:
    return CatalogModel(
        str(model.folder),
        model.parameters,
        model.context,
        licence=None,
        gated=False,
        at_hand="run",
    )


def _packaged(model: PackagedModel) -> CatalogModel:
    row = model_catalog.find(model.model)
    assert row is not None  # noqa: S101 - a test of the catalog
    return CatalogModel(
        model.name,
        row.parameters,
        row.context,
        licence=model.licence,
        gated=False,
        at_hand="package" if is_downloaded(model) else None,
    )


def _published(row: ModelRow, is_cached: bool) -> CatalogModel:
    return CatalogModel(
        row.name,
        row.parameters,
        row.context,
        licence=row.licence or None,
        gated=row.gated,
        at_hand="hub cache" if is_cached else None,
    )


def model_lines(models: Sequence[CatalogModel]) -> list[str]:
    """Return a line for each model, two for a very long id; `*` is on this disk."""
    rows = [(" ", "model", "size", "context", "licence"), *map(_model_cells, models)]
    # A long id stands alone, above the rest of its row.
    halves = [
        half
        for row in rows
        for half in ([row] if len(row[1]) <= MOST_NAME_COLUMNS else [row[:2], (" ", "", *row[2:])])
    ]
    widths = [
        max(len(half[place]) for half in halves if len(half) == len(rows[0]))
        for place in range(len(rows[0]))
    ]
    lines = [
        " ".join(cell.ljust(width) for cell, width in zip(half, widths, strict=False)).rstrip()
        for half in halves
    ]
    return [*lines, "", *_model_notes(models)]


def _model_cells(model: CatalogModel) -> tuple[str, str, str, str, str]:
    context = model.context
    terms = [model.licence or "", "gated" if model.gated else ""]
    return (
        "*" if model.at_hand else " ",
        model.id,
        format_count(model.parameters),
        "" if context is None else f"{context:,}",
        ", ".join(filter(None, terms)),
    )


def _model_notes(models: Sequence[CatalogModel]) -> list[str]:
    on_disk = sum(bool(each.at_hand) for each in models)
    read = f"catalog of {model_catalog.read_until()}"
    notes = [f"{plural(len(models), 'model')}, {read}; * on this disk: {on_disk}"]
    packaged = [each.id for each in models if model_catalog.packaged(each.id)]
    if packaged:
        notes.append(f"without the hub, from a package: brimful models get {packaged[0]}")
    if any(each.gated for each in models):
        notes.append("gated: accept the terms on the model's page, then `hf auth login`")
    return notes
