"""The catalog of accelerators to plan for: one row of catalog.toml each, found by its exact
name.
"""

import dataclasses
import functools
import re
import tomllib
from importlib import resources
from typing import Any

from brimful.base.discover import did_you_mean
from brimful.base.errors import DeviceError
from brimful.base.units import GIB, MIB
from brimful.hardware.device import DTYPES, Device, abilities_of

_UNMEASURED_MEMORY = (
    "memory (the driver's total; torch was seen to get 0.3 to 0.8 GiB less on other rows)"
)


@dataclasses.dataclass(frozen=True)
class Price:
    """The price of renting a device.

    Attributes:
        usd_per_hour: The first on-demand offer; the upper end where the source gives a range.
        offers: All offers, as the source words them.
        source: Of the offers.
        read: The day it was read, ISO 8601.
    """

    usd_per_hour: float
    offers: str
    source: str
    read: str


def names() -> list[str]:
    """Return the exact names of all rows in the order of the file, without aliases."""
    return [row["name"] for row in _rows()]


def find(name: str) -> Device | None:
    """Return the row with this exact name or alias in any case; None if there is none."""
    row = _row_by_name().get(name.casefold().strip())
    if row is None:
        return None
    return _device(row)


def get(name: str) -> Device:
    """Return the row with this exact name or alias in any case.

    Raises:
        DeviceError: no such row. A part of a name is not enough; the message lists rows that
            contain all its words.
    """
    return _device(_require(name))


def price_of(name: str) -> Price | None:
    """Return the price of the device `name`; None where no offer is known, or only a free quota.

    Raises:
        DeviceError: as in `get`.
    """
    row = _require(name)
    if not row.get("price_usd_per_hour"):
        return None
    usd_per_hour = float(row["price_usd_per_hour"])
    return Price(
        usd_per_hour, row.get("price_offers", f"{usd_per_hour:g}"), row["price_source"], row["read"]
    )


def power_of(name: str) -> float | None:
    """Return the power limit of the board `name` in watts; None where the catalog does not have
    it.
    """
    power_w = _row_by_name().get(name.casefold().strip(), {}).get("power_w")
    return None if power_w is None else float(power_w)


def cache_bytes_of(name: str) -> int:
    """Return the size of the L2 cache of the board `name`; 0 where the catalog does not have it."""
    return round(1e6 * float(_row_by_name().get(name.casefold().strip(), {}).get("l2_cache_mb", 0)))


def _require(name: str) -> dict[str, Any]:
    row = _row_by_name().get(name.casefold().strip())
    if row is not None:
        return row
    words = _words(name)
    matching = [known for known in names() if words and words <= _words(known)]
    if len(matching) > 1:
        listed = ", ".join(repr(known) for known in matching)
        raise DeviceError(
            f"{name!r} could be any of {len(matching)} accelerators: {listed}. Give the exact name"
            " of one."
        )
    hint = f" - did you mean {matching[0]!r}?" if matching else did_you_mean(name, names())
    raise DeviceError(
        f"unknown accelerator {name!r}{hint} The catalog has {len(names())} rows, found by the"
        " exact name that the driver reports."
    )


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.casefold()))


@functools.cache
def _rows() -> tuple[dict[str, Any], ...]:
    text = resources.files("brimful.hardware").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["accelerator"])


@functools.cache
def _row_by_name() -> dict[str, dict[str, Any]]:
    return {
        name.casefold(): row for row in _rows() for name in (row["name"], *row.get("aliases", ()))
    }


def _device(row: dict[str, Any]) -> Device:
    capability = row.get("compute_capability")
    compute_capability = (capability[0], capability[1]) if capability else None
    architecture = row.get("architecture")
    memory_bytes, doubts = _memory(row)
    return Device(
        name=row["name"],
        kind=row["kind"],
        index=None,
        memory_bytes=memory_bytes,
        free_memory_bytes=None,
        bandwidth_bytes_per_s=(
            row["bandwidth_gb_per_s"] * 1e9 if "bandwidth_gb_per_s" in row else None
        ),
        dense_flop_per_s={
            dtype: row[f"dense_{dtype}_tflops"] * 1e12
            for dtype in DTYPES
            if f"dense_{dtype}_tflops" in row
        },
        compute_capability=compute_capability,
        abilities=abilities_of(row["kind"], compute_capability, architecture),
        threads=None,
        source=f"catalog, read {row['read']}: {row['source']}",
        uncertain=(*row.get("uncertain", ()), *doubts),
        architecture=architecture,
        multiprocessors=row.get("multiprocessors"),
    )


def _memory(row: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    if "torch_memory_gib" in row:
        return round(row["torch_memory_gib"] * GIB), ()
    total_bytes = row["memory_mib"] * MIB
    if "usable_memory_share" in row:
        return round(total_bytes * row["usable_memory_share"]), ()
    return round(total_bytes), (_UNMEASURED_MEMORY,)
