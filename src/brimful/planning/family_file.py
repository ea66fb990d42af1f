"""Families as files: short, compressed, the same bytes for the same family.

A family of a model with dozens of blocks takes some 8 KB: its arrays hold few blocks, positions
are kept as distances, which repeat from block to block, and all of it is compressed.
"""

import dataclasses
import json
import lzma
from typing import Any

import numpy as np

from brimful.planning.family import FamilyCalls, ShortFamily, no_sums
from brimful.planning.trace import Int32Array, Int64Array, Trace
from brimful.planning.work import COUNTS, Calls, Work

FORMAT = 1
"""Raised with every change of what a file holds."""
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
_TRACE_ARRAYS = ("event_layers_E", "kinds_S", "places_S", "layers_S")
_WORK_ARRAYS = tuple(
    each.name
    for each in dataclasses.fields(Work)
    if each.name != "operators" and each.name not in COUNTS
)
_NUMBERS = ("example", "blocks", "lowest")
_ARRAYS = ("product_S", "outside_S", "parameters", "trainable")


class DamagedFile(Exception):
    """The bytes are no family, or those of another format."""


def to_bytes(family: ShortFamily) -> bytes:
    """Return the file's content."""
    return packed(*parts_of(family))


def parts_of(family: ShortFamily) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the plain values of a family."""
    trace, work = family.trace, family.work
    arrays = {name: getattr(family, name) for name in _ARRAYS}
    arrays |= {name: getattr(trace, name) for name in _TRACE_ARRAYS}
    arrays |= {"sizes_S": trace.sizes_S}
    arrays |= {"signs_E": np.sign(trace.events_E), "lags_E": _lags(trace.events_E)}
    arrays |= {name: getattr(work, name) for name in _WORK_ARRAYS}
    for name in ("terms", "growth"):
        counts = getattr(family, name)
        positions = np.flatnonzero(counts)
        arrays[name], arrays[f"{name}_gaps"] = counts.flat[positions], np.diff(positions, prepend=0)
    for name in ("short", "longer"):
        calls: FamilyCalls = getattr(family, name)
        arrays[f"{name}_elements"] = calls.elements
        arrays |= {f"{name}_{each}": getattr(calls.calls, each) for each in _calls()}
    if len(family.sums_S):
        arrays["sums_S"] = family.sums_S
    words: dict[str, Any] = {name: getattr(family, name) for name in _NUMBERS}
    if family.rows > 1:
        words["rows"] = family.rows
    words |= {"places": list(trace.places), "name_of_blocks": trace.blocks}
    words["marks"] = list(trace.marks.items())  # their order counts
    words |= {"operators": work.operators, "counts": family.terms.shape}
    return arrays, words


def packed(arrays: dict[str, np.ndarray], words: dict[str, Any]) -> bytes:
    """Return arrays and plain values as the content of a file."""
    from safetensors.numpy import save  # noqa: PLC0415 - plans that find nothing need none

    content = save(
        {name: np.ascontiguousarray(_narrowed(array)) for name, array in arrays.items()},
        metadata={"family": json.dumps(words, sort_keys=True)},
    )
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=_FILTERS)


def from_bytes(content: bytes) -> ShortFamily:
    """Return the family in a file's content.

    Raises:
        DamagedFile: it holds none.
    """
    return family_of(*unpacked(content))


def unpacked(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the plain values in a file's content.

    Raises:
        DamagedFile: it holds none.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 - as above
    from safetensors.numpy import load  # noqa: PLC0415

    try:
        plain = lzma.decompress(content)
        arrays = load(plain)
        header = json.loads(plain[8 : 8 + int.from_bytes(plain[:8], "little")])
        return arrays, json.loads(header["__metadata__"]["family"])
    except (lzma.LZMAError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(str(error)) from error


def family_of(arrays: dict[str, np.ndarray], words: dict[str, Any]) -> ShortFamily:
    """Return the family of these arrays and plain values.

    Raises:
        DamagedFile: they are none.
    """
    try:
        return _family(arrays, words)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DamagedFile(str(error)) from error


def _family(arrays: dict[str, np.ndarray], words: dict[str, Any]) -> ShortFamily:
    wide = {
        name: array.astype(np.int64) if array.dtype.kind == "i" else array
        for name, array in arrays.items()
    }
    counts = {}
    for name in ("terms", "growth"):
        counts[name] = np.zeros(words["counts"], np.int64)
        counts[name].flat[np.cumsum(wide[f"{name}_gaps"])] = wide[name]
    work: dict[str, Any] = {name: np.zeros(words["counts"][1], np.int64) for name in COUNTS}
    work |= {name: wide[name] for name in _WORK_ARRAYS}
    births_E = np.cumsum(wide["signs_E"] > 0)
    trace: dict[str, Any] = {name: wide[name].astype(np.int32) for name in _TRACE_ARRAYS}
    trace["events_E"] = (wide["signs_E"] * (births_E - wide["lags_E"])).astype(np.int32)
    short, longer = (
        FamilyCalls(
            Calls(**{each: wide[f"{name}_{each}"] for each in _calls()}), wide[f"{name}_elements"]
        )
        for name in ("short", "longer")
    )
    return ShortFamily(
        Trace(
            **trace,
            sizes_S=wide["sizes_S"],
            places=tuple(words["places"]),
            blocks=words["name_of_blocks"],
            marks=dict(words["marks"]),
        ),
        wide["product_S"],
        wide["outside_S"],
        wide["parameters"],
        wide["trainable"],
        Work(**work, operators=tuple(words["operators"])),
        counts["terms"],
        counts["growth"],
        short,
        longer,
        words["example"],
        words["blocks"],
        words["lowest"],
        wide.get("sums_S", no_sums()),
        words.get("rows", 1),
    )


def _calls() -> list[str]:
    return [each.name for each in dataclasses.fields(Calls)]


def _lags(events_E: Int32Array) -> Int64Array:
    """Return how many storages were allocated since that of each event."""
    births_E: Int64Array = np.cumsum(events_E > 0)
    return births_E - np.abs(events_E)


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Return whole numbers in the narrowest type that holds them."""
    if array.dtype.kind != "i" or not array.size:
        return array
    largest = max(abs(int(array.min())), abs(int(array.max())))
    return array.astype(np.min_scalar_type(-largest - 1))
