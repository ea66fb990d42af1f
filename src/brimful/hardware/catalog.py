"""The catalog of accelerators to plan for: one row of catalog.toml each. What the driver reports is
looked up by its exact name (`find`); what a person writes may be shorter (`get`).
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence

from brimful.base.discover import did_you_mean
from brimful.base.errors import DeviceError
from brimful.base.kept_values import shipped_table
from brimful.base.types import JsonDict
from brimful.base.units import GIB, MIB
from brimful.hardware.device import DTYPES, Device, abilities_of
from brimful.hardware.naming import Named, matching, short_name, split

_UNMEASURED_MEMORY = (
    "memory (the driver's total, less what torch was seen not to get on other rows)"
)
DRIVER_KEEPS_GIB, DRIVER_KEEPS_SHARE = 0.2, 0.008
"""What NVIDIA's driver does not give to torch of its own total, where nobody reported it: a
constant and a share. Over the rows of the catalog with a report it is between 0.15 GiB too little
and 0.35 GiB too much (tests/hardware/test_catalog.py).
"""

_SIZED = re.compile(r"(?P<device>.*[^\s-])[\s-]+(?P<size>\d{1,9})\s?g(?:i?b)?", re.IGNORECASE)
"""A device with the size of its memory: `M3 Max 48GB`, `m3-max-48gb`."""
MOST_LISTED = 12
"""Devices that an error lists at most."""


@dataclasses.dataclass(frozen=True)
class Price:
    """The price of renting a device.

    Attributes:
        usd_per_hour: The first on-demand offer; the upper end where the source gives a range.
        offers: All offers, as the source words them.
        source: Where the offers were read.
        read: The day it was read, ISO 8601.
    """

    usd_per_hour: float
    offers: str
    source: str
    read: str


@dataclasses.dataclass(frozen=True)
class DeviceLink:
    """What joins the devices of a machine.

    Attributes:
        name: Kind and generation.
        bytes_per_s: Rate in one direction, by the data sheet.
    """

    name: str
    bytes_per_s: float


def read_until() -> str:
    """Return the day of the newest reading of a row, ISO 8601: the date of the catalog."""
    return max(str(row["read"]) for row in _rows())


def names() -> list[str]:
    """Return the exact names of all rows in the order of the file, without aliases."""
    return [row["name"] for row in _rows()]


def find(name: str) -> Device | None:
    """Return the row with this exact name or alias in any case; None if there is none."""
    row = _row(name)
    return _device(row) if row else None


def get(name: str) -> Device:
    """Return the row that a person means by this name: an exact name or alias in any case, else the
    only one that `naming.matching` finds, so that `T4` and `4090` are enough. Of several of one
    family it is the most common (`family_note`).

    Raises:
        DeviceError: no such row, or several; the message lists them.
    """
    return _device(_require(name))


def family_note(name: str) -> str | None:
    """Return which member of a family a name such as `A100` is taken for, why, and what the others
    are called; None for a name that means one device, or none.
    """
    meant = matching(name, _called())
    family = _family_of(meant)
    if family is None:
        return None
    chosen = _require(name)["name"]
    others = ", ".join(short_name(each) for each in meant if each != chosen)
    return f"{name} is taken for {chosen}: {family['reason']}. Others of that name: {others}."


def having(words: str) -> list[str]:
    """Return the exact names of the rows that `words` can mean, or whose name or vendor has each of
    them as a part; all rows for no word.
    """
    meant = set(matching(words, _called()))
    return [
        row["name"]
        for row in _rows()
        if row["name"] in meant
        or all(part in f"{row['vendor']} {row['name']}".casefold() for part in split(words))
    ]


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
    power_w = _row(name).get("power_w")
    return None if power_w is None else float(power_w)


def link_of(name: str) -> DeviceLink | None:
    """Return what joins several of the device `name`; None where the catalog does not have it."""
    row = _row(name)
    return DeviceLink(row["link"], 1e9 * row["link_gb_per_s"]) if "link" in row else None


def cache_bytes_of(name: str) -> int:
    """Return the size of the L2 cache of the board `name`; 0 where the catalog does not have it."""
    return round(1e6 * float(_row(name).get("l2_cache_mb", 0)))


def _row(name: str) -> JsonDict:
    """Return the row with this exact name or alias; an empty one where there is none."""
    return _row_by_name().get(name.casefold().strip(), {})


def _require(name: str) -> JsonDict:
    if row := _row(name):
        return row
    sized = _of_another_size(name)
    if sized is not None:
        return sized
    meant = matching(name, _called())
    family = _family_of(meant)
    if family is not None:
        meant = [each for each in family["members"] if each in meant][:1]
    if len(meant) == 1:
        return _row_by_name()[meant[0].casefold()]
    if meant:
        shown = [f"  {short_name(known):<18} {known}" for known in meant[:MOST_LISTED]]
        more = f"\n  and {len(meant) - MOST_LISTED} more" if len(meant) > MOST_LISTED else ""
        raise DeviceError(
            f"{name!r} can be any of {len(meant)} devices. Write one of these names, the short or"
            " the long one:\n" + "\n".join(shown) + more
        )
    raise DeviceError(
        f"unknown device {name!r}{_suggestion(name)} `brimful devices` lists the {len(_rows())} of"
        " the catalog."
    )


def _suggestion(name: str) -> str:
    """Return ` - did you mean 'x'?` for a close exact or short name, else a full stop."""
    hint = did_you_mean(name, names())
    return did_you_mean(short_name(name), map(short_name, names())) if hint == "." else hint


def _family_of(meant: Sequence[str]) -> JsonDict | None:
    """Return the family that all of several devices belong to; None for one device or none."""
    found = (each for each in _catalog()["family"] if set(meant) <= set(each["members"]))
    return next(found, None) if len(meant) > 1 else None


@functools.cache
def _catalog() -> JsonDict:
    return shipped_table("brimful.hardware", "catalog.toml")


@functools.cache
def _rows() -> tuple[JsonDict, ...]:
    return tuple(_catalog()["accelerator"])


@functools.cache
def _called() -> tuple[Named, ...]:
    return tuple(
        Named((row["name"], *row.get("aliases", ())), row["memory_mib"] * MIB / GIB)
        for row in _rows()
    )


@functools.cache
def _row_by_name() -> dict[str, JsonDict]:
    known = {
        name.casefold(): row for row in _rows() for name in (row["name"], *row.get("aliases", ()))
    }
    return known | {row["name"].casefold(): row for row in _rows_of_other_sizes()}


def _rows_of_other_sizes() -> Iterator[JsonDict]:
    """Yield a row for every other size of memory that a device comes with, such as `Apple M3 Max
    48GB`. They have no line in lists.
    """
    for row in _rows():
        for size in row.get("memory_sizes_gib", ()):
            if size * GIB != row["memory_mib"] * MIB:
                name = f"{row['name']} {size}GB"
                yield {**row, "name": name, "memory_mib": size * GIB // MIB}


def _of_another_size(name: str) -> JsonDict | None:
    """Return the row that a person means by a device and a size of its memory; None where that is
    no such name.

    Raises:
        DeviceError: the device does not come with that size.
    """
    found = _SIZED.fullmatch(name.strip())
    if found is None:
        return None
    meant = matching(found["device"], _called())
    row = _row_by_name()[meant[0].casefold()] if len(meant) == 1 else {}
    sizes, size = row.get("memory_sizes_gib", ()), int(found["size"])
    if not sizes or size * GIB == row["memory_mib"] * MIB:
        return None
    if size not in sizes:
        raise DeviceError(
            f"{row['name']} comes with {', '.join(map(str, sizes))} GB of memory, not with {size};"
            f" write one of these, as {short_name(row['name'])}-{sizes[0]}gb."
        )
    return _row_by_name()[f"{row['name']} {size}gb".casefold()]


def _device(row: JsonDict) -> Device:
    capability = row.get("compute_capability")
    compute_capability = (capability[0], capability[1]) if capability else None
    architecture = row.get("architecture")
    memory_bytes, doubts = _memory(row)
    return Device(
        name=row["name"],
        kind=row["kind"],
        memory_bytes=memory_bytes,
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
        source=f"catalog, read {row['read']}: {row['source']}",
        uncertain=(*row.get("uncertain", ()), *doubts),
        architecture=architecture,
        multiprocessors=row.get("multiprocessors"),
        shares_memory="usable_memory_share" in row,
    )


def _memory(row: JsonDict) -> tuple[int, tuple[str, ...]]:
    if "torch_memory_gib" in row:
        return round(row["torch_memory_gib"] * GIB), ()
    total_bytes = row["memory_mib"] * MIB
    if "usable_memory_share" in row:
        return round(total_bytes * row["usable_memory_share"]), ()
    if row["vendor"] == "NVIDIA":
        total_bytes -= DRIVER_KEEPS_GIB * GIB + DRIVER_KEEPS_SHARE * total_bytes
    return round(total_bytes), (_UNMEASURED_MEMORY,)
