"""Families as files: short, compressed, the same bytes for the same family.

A family takes some 10 KB: its arrays hold few blocks, positions are kept as distances, which repeat
from block to block, and all of it is compressed.
"""

import dataclasses
import json
import lzma
from collections.abc import Mapping

import numpy as np

from brimful.base.arrays import Ints
from brimful.base.types import JsonDict
from brimful.planning.architecture import Monomial
from brimful.planning.block_rows import BlockRows
from brimful.planning.family import BlockSegment, Family, Sums, Term
from brimful.planning.trace import Int32Array, Trace
from brimful.planning.work import COUNTS, Calls, Work

FORMAT = 2
"""Part of the names of files. With a change of what they hold it is raised, or the folder of the
cache gets another name (`store.families_folder`), so that shipped files can keep theirs.
"""
_MAGIC = b"\xfd7zXZ"
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
_TRACE_ARRAYS = ("event_layers_E", "kinds_S", "places_S", "layers_S")
_WORK_ARRAYS = tuple(
    each.name
    for each in dataclasses.fields(Work)
    if each.name != "operators" and each.name not in COUNTS
)
_CALL_ARRAYS = ("rows_L", "limits_L", "tensors_L")
_SUM_ARRAYS = ("places_A", "factors_A", "terms_A")


class DamagedFile(Exception):
    """The bytes are no family, or those of another format."""


def to_bytes(family: Family) -> bytes:
    """Return the file's content."""
    from safetensors.numpy import save  # noqa: PLC0415 - plans that find nothing need none

    trace, work = family.trace, family.work
    arrays = {name: getattr(trace, name) for name in _TRACE_ARRAYS}
    arrays |= {"signs_E": np.sign(trace.events_E), "lags_E": _lags(trace.events_E)}
    if work is not None:
        arrays |= {name: getattr(work, name) for name in _WORK_ARRAYS}
    parts = [(family.calls, family.sums), *((each.calls, each.sums) for each in family.segments)]
    for number, (calls, sums) in enumerate(parts):
        arrays |= _arrays_of(str(number), calls, sums)
    words: JsonDict = dataclasses.asdict(family.rows)
    words |= {"lowest": family.lowest, "weight_rows": family.weight_rows}
    words["times"] = [each.times for each in family.segments]
    words |= {"places": list(trace.places), "name_of_blocks": trace.blocks}
    words["marks"] = list(trace.marks.items())  # their order counts
    words["operators"] = None if work is None else work.operators
    words["counts"] = [{name: each.count for name, each in sums.items()} for _, sums in parts]
    words["terms"] = [(each.product, *dataclasses.astuple(each.widths)) for each in family.terms]
    content = save(
        {name: np.ascontiguousarray(_narrowed(array)) for name, array in arrays.items()},
        metadata={"family": json.dumps(words, sort_keys=True)},
    )
    return compressed(content)


def _arrays_of(number: str, calls: Calls, sums: Mapping[str, Sums]) -> dict[str, np.ndarray]:
    arrays = {f"{number} {name}": getattr(calls, name) for name in _CALL_ARRAYS}
    for name, each in sums.items():
        arrays |= {f"{number} {name} {part}": getattr(each, part) for part in _SUM_ARRAYS}
        arrays[f"{number} {name} places_A"] = np.diff(each.places_A, prepend=0)  # they rise
    return arrays


def compressed(content: bytes) -> bytes:
    """Return bytes in the form in which files hold them; the same bytes for the same ones."""
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=_FILTERS)


def opened(content: bytes) -> bytes:
    """Return what `compressed` was given; other bytes as they are.

    Raises:
        DamagedFile: nothing can be made of it.
    """
    try:
        return lzma.decompress(content) if content.startswith(_MAGIC) else content
    except lzma.LZMAError as error:
        raise DamagedFile(str(error)) from error


def from_bytes(content: bytes) -> Family:
    """Return the family in a file's content.

    Raises:
        DamagedFile: it holds none.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 - as above
    from safetensors.numpy import load  # noqa: PLC0415

    try:
        plain = opened(content)
        arrays = load(plain)
        header = json.loads(plain[8 : 8 + int.from_bytes(plain[:8], "little")])
        return _family(arrays, json.loads(header["__metadata__"]["family"]))
    except (
        SafetensorError,
        KeyError,
        AttributeError,
        TypeError,
        ValueError,
        IndexError,
    ) as error:
        raise DamagedFile(str(error)) from error


def _family(arrays: dict[str, np.ndarray], words: JsonDict) -> Family:
    wide = {
        name: array.astype(np.int64) if array.dtype.kind == "i" else array
        for name, array in arrays.items()
    }
    births_E = np.cumsum(wide["signs_E"] > 0)
    trace: JsonDict = {name: wide[name].astype(np.int32) for name in _TRACE_ARRAYS}
    trace["events_E"] = (wide["signs_E"] * (births_E - wide["lags_E"])).astype(np.int32)
    parts = []
    for number, counts in enumerate(words["counts"]):
        sums = {}
        for name, count in counts.items():
            places_A, factors_A, terms_A = (wide[f"{number} {name} {part}"] for part in _SUM_ARRAYS)
            sums[name] = Sums(count, np.cumsum(places_A), factors_A, terms_A)
        parts.append((_calls(wide, number), sums))
    (calls, sums), *segments = parts
    return Family(
        Trace(
            **trace,
            sizes_S=np.zeros(len(trace["kinds_S"]), np.int64),
            places=tuple(words["places"]),
            blocks=words["name_of_blocks"],
            marks=dict(words["marks"]),
        ),
        _work(wide, words["operators"]),
        calls,
        tuple(Term(product, Monomial(*widths)) for product, *widths in words["terms"]),
        sums,
        tuple(
            BlockSegment(times, *each) for times, each in zip(words["times"], segments, strict=True)
        ),
        BlockRows(words["few"], words["all"]),
        words["lowest"],
        words["weight_rows"],
    )


def _work(arrays: dict[str, np.ndarray], operators: list[str] | None) -> Work | None:
    if operators is None:
        return None
    nothing_W = np.zeros(len(arrays["parts_W"]), np.int64)
    kept: JsonDict = {name: arrays[name] for name in _WORK_ARRAYS}
    kept |= dict.fromkeys(COUNTS, nothing_W)
    return Work(**kept, operators=tuple(operators))


def _calls(arrays: dict[str, np.ndarray], number: int) -> Calls:
    rows_L, limits_L, tensors_L = (arrays[f"{number} {each}"] for each in _CALL_ARRAYS)
    return Calls(rows_L, limits_L, tensors_L, np.zeros(len(rows_L), np.int64))


def _lags(events_E: Int32Array) -> Ints:
    """Return how many storages were allocated since that of each event."""
    births_E: Ints = np.cumsum(events_E > 0)
    return births_E - np.abs(events_E)


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Return whole numbers in the narrowest type that holds them."""
    if array.dtype.kind != "i" or not array.size:
        return array
    largest = max(abs(int(array.min())), abs(int(array.max())))
    return array.astype(np.min_scalar_type(-largest - 1))
