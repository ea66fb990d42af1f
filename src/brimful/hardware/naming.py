"""What a person calls a device: `T4`, `4090`, `M3 Max`, `a100-80`. Such a name stands for the one
row of the catalog that it can mean, or for several, which are then listed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOISE = frozenset(
    {"nvidia", "geforce", "rtx", "gtx", "tesla", "gpu", "generation", "server", "edition"}
    | {"amd", "instinct", "radeon", "rx", "apple"}
)
"""Words of names that tell no device from another of the same maker."""
MEMORY_TOLERANCE = 0.07
"""Part by which `80gb` may differ from the memory that a driver reports: a 16 GB T4 has 15 GiB."""
_MEMORY = re.compile(r"(\d{1,9})(?:g|gb|gib)?")
LONGEST = 64
"""Characters of a word that can be several known ones written together."""
_SIZE = re.compile(r"\d+gb")
_FAMILY = re.compile(r"([a-z]{3,})\d")
"""`sxm4`, `hbm3`: the letters alone are understood, too."""


@dataclass(frozen=True)
class Named:
    """A device by what it is called.

    Attributes:
        names: The exact name first, then other exact names of the same device.
        memory_gib: Memory as the driver reports it.
    """

    names: Sequence[str]
    memory_gib: float


def matching(text: str, devices: Sequence[Named]) -> list[str]:
    """Return the exact names of the devices that `text` can mean, in their order.

    Every word of the text must be a word of the device's name, in any case and order, or its
    memory, and one must be of the name. Words of `NOISE` do not count. A device whose name says no
    more than the text goes before longer names: `3060` is no 3060 Ti.
    """
    known = frozenset(word for each in devices for word in _words_of_all(each.names))
    parts = (part for word in split(text) for part in _known_parts(word, known | NOISE))
    wanted = frozenset(part for part in parts if part not in NOISE)
    found = [
        each
        for each in devices
        if any(_names(each, word) for word in wanted) and all(_says(each, word) for word in wanted)
    ]
    whole = [
        each for each in found if any(_tells_no_more(name, wanted, each) for name in each.names)
    ]
    return [each.names[0] for each in whole or found]


def short_name(name: str) -> str:
    """Return the exact name without maker and brand, as one word: `a100-sxm4-80gb`."""
    return "-".join(word for word in split(name) if word not in NOISE)


def split(text: str) -> list[str]:
    """Return the words of a name in lower case."""
    return re.findall(r"[a-z0-9]+", text.casefold())


def _words_of_all(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in split(name)}


def _words_and_families(device: Named) -> set[str]:
    words = _words_of_all(device.names)
    return words | {found[1] for each in words if (found := _FAMILY.fullmatch(each))}


def _names(device: Named, word: str) -> bool:
    """Return whether a word is one of the device's name and more than a size."""
    return word in _words_and_families(device) and not _SIZE.fullmatch(word)


def _says(device: Named, word: str) -> bool:
    """Return whether a word or family of the device's name, or its memory, is meant."""
    return word in _words_and_families(device) or _is_memory(device, word)


def _is_memory(device: Named, word: str) -> bool:
    number = _MEMORY.fullmatch(word)
    if number is None:
        return False
    return abs(int(number[1]) / device.memory_gib - 1) <= MEMORY_TOLERANCE


def _tells_no_more(name: str, wanted: frozenset[str], device: Named) -> bool:
    """Return whether a name has no word beside the wanted ones, apart from brands and memory."""
    own = {word for word in split(name) if word not in NOISE}
    return own <= wanted and all(word in own or _is_memory(device, word) for word in wanted)


def _known_parts(word: str, known: frozenset[str]) -> list[str]:
    """Return the known words that a word is made of (`rtx4090`, `m3max`), else itself."""
    if word in known:
        return [word]
    for end in range(len(word) - 1, 1, -1) if len(word) <= LONGEST else ():
        if word[:end] in known:  # asked first: else the time doubles with every character
            rest = _known_parts(word[end:], known)
            if all(part in known for part in rest):
                return [word[:end], *rest]
    return [word]
