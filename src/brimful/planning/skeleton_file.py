"""Skeletons as files, in the same way as families: some 10 KB for every network of a structure."""

from typing import Any

import numpy as np

from brimful.planning.architecture import Monomial
from brimful.planning.family_file import DamagedFile, family_of, packed, parts_of, unpacked
from brimful.planning.skeleton import SUMS, Skeleton, Sums

_PARTS = ("places", "factors", "monomials")


def to_bytes(skeleton: Skeleton) -> bytes:
    """Return the file's content."""
    arrays, words = parts_of(skeleton.like)
    for name, sums in skeleton.sums.items():
        places = np.diff(sums.places_A, prepend=0)  # they rise
        for part, array in zip(_PARTS, (places, sums.factors_A, sums.monomials_A), strict=True):
            arrays[f"{name}.{part}"] = array
    words["shapes"] = {name: sums.shape for name, sums in skeleton.sums.items()}
    words["monomials"] = [[each.letters, each.divisor] for each in skeleton.monomials]
    return packed(arrays, words)


def from_bytes(content: bytes) -> Skeleton:
    """Return the skeleton in a file's content.

    Raises:
        DamagedFile: it holds none.
    """
    arrays, words = unpacked(content)
    try:
        sums = {name: _sums(arrays, words, name) for name in SUMS}
        monomials = tuple(Monomial(str(name), int(each)) for name, each in words["monomials"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(str(error)) from error
    return Skeleton(family_of(arrays, words), monomials, sums)


def _sums(arrays: dict[str, np.ndarray], words: dict[str, Any], name: str) -> Sums:
    places, factors, monomials = (arrays[f"{name}.{part}"].astype(np.int64) for part in _PARTS)
    return Sums(tuple(words["shapes"][name]), np.cumsum(places), factors, monomials)
