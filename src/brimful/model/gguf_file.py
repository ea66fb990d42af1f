"""What a GGUF file says of itself: the model's sizes, its tensors and their types.

Only the header is read, so a file of any size is described at once, with neither torch nor the
package `gguf`. What is read is checked: the file may come from anybody.
"""

import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from brimful.base.discover import did_you_mean
from brimful.base.errors import PlanError
from brimful.base.types import Counts, Json, JsonDict
from brimful.base.units import format_bytes

SUFFIX = ".gguf"
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "starcoder2": "starcoder2",
}
"""Architectures that are read here, and transformers' model type of each."""
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Types by number: name, values in a block, bytes of a block. The package `gguf` can turn all of
them into plain numbers.
"""
_PLAIN = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Number of a metadata type -> how `struct` reads it."""
_STRING, _ARRAY = 8, 9
_SHORT_ARRAY = 64
"""Longer arrays (tokens, merges, scores) are skipped; their length is kept."""
_MOST_ENTRIES = 1 << 24


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file.

    Attributes:
        path: The file.
        metadata: Values by key; an array longer than 64 values is its length.
        types: Number of tensors by the name of their type, the most frequent first.
        parameters: Number of weights.
        tensor_bytes: Size of all weights in the file.
        has_output: The output layer has weights of its own.
    """

    path: Path
    metadata: Json
    types: Counts
    parameters: int
    tensor_bytes: int
    has_output: bool

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight takes in the file, on average."""
        return 8 * self.tensor_bytes / self.parameters


class _Header:
    """Reads values one after another; every read is within the file."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path, self._content, self.place = path, content, 0

    def plain(self, form: str) -> Any:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return value

    def text(self) -> str:
        return self._take(self.plain("<Q")).decode("utf-8", errors="replace")

    def count(self, what: str) -> int:
        """Return a number of entries."""
        number: int = self.plain("<Q")
        if number > _MOST_ENTRIES:
            raise PlanError(f"{self._path} is damaged: it claims to have {number:,} {what}.")
        return number

    def value(self, kind: int) -> Any:
        """Return a value of metadata; of a long array its length."""
        if kind in _PLAIN:
            return self.plain(_PLAIN[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise PlanError(f"{self._path} is damaged: there is no metadata type {kind}.")
        inner, length = self.plain("<I"), self.count("values in an array")
        if inner == _ARRAY:
            raise PlanError(f"{self._path} is damaged: its metadata hold an array of arrays.")
        if inner in _PLAIN and length > _SHORT_ARRAY:
            self._take(length * struct.calcsize(_PLAIN[inner]))
            return length
        if inner == _STRING and length > _SHORT_ARRAY:
            for _ in range(length):
                self._take(self.plain("<Q"))
            return length
        return [self.value(inner) for _ in range(length)]

    def _take(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self._content):
            raise PlanError(
                f"{self._path} is cut off: it ends after {format_bytes(len(self._content))}, within"
                " its header. Download it again."
            )
        taken = self._content[self.place : end]
        self.place = end
        return taken


def is_gguf(name: str) -> bool:
    """Return whether a model is named by a GGUF file of its own, not one in a package."""
    return name.endswith(SUFFIX) and not name.startswith("package:")


def read_gguf(path: Path) -> GgufFile:
    """Return the header of a GGUF file.

    Raises:
        PlanError: it is no GGUF file, is cut off or damaged, has weights of an unknown type, a
            model of another architecture than those read here, or no tokenizer.
    """
    if not path.is_file():
        raise PlanError(f"there is no file {path}. Give the path of a GGUF file: model=FILE.gguf.")
    size = path.stat().st_size
    if size < 24:
        raise PlanError(f"{path} is no GGUF file: it has {size} bytes.")
    with open(path, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _read(path, _Header(path, data), size)
    _refuse_unknown(found)
    return found


def _read(path: Path, header: _Header, size: int) -> GgufFile:
    if header.plain("4s") != b"GGUF":
        raise PlanError(f"{path} is no GGUF file: it does not begin with GGUF.")
    version = header.plain("<I")
    if version not in {2, 3}:
        raise PlanError(
            f"{path} is GGUF version {version}; versions 2 and 3 of little-endian machines are read"
            " here. Convert it with a current llama.cpp."
        )
    tensors, keys = header.count("tensors"), header.count("keys")
    metadata = {header.text(): header.value(header.plain("<I")) for _ in range(keys)}
    types: Counter[str] = Counter()
    parameters, ends, tensor_bytes, has_output = 0, [0], 0, False
    for _ in range(tensors):
        name = header.text()
        dimensions = header.plain("<I")
        elements = prod(header.plain("<Q") for _ in range(min(dimensions, 8)))
        kind, offset = header.plain("<I"), header.plain("<Q")
        if kind not in TENSOR_TYPES:
            known = ", ".join(each[0] for each in TENSOR_TYPES.values())
            raise PlanError(
                f"{path}: tensor {name!r} has type {kind}, which cannot be turned into plain"
                f" numbers here. Known types: {known}."
            )
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        num_bytes = -(-elements // block) * block_bytes
        types[type_name] += 1
        parameters, tensor_bytes = parameters + elements, tensor_bytes + num_bytes
        ends.append(offset + num_bytes)
        has_output |= name == "output.weight"
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise PlanError(f"{path} is damaged: its alignment (general.alignment) is {alignment!r}.")
    start = -(-header.place // alignment) * alignment
    if start + max(ends) > size:
        raise PlanError(
            f"{path} is cut off: its weights need {format_bytes(start + max(ends))}, and it has"
            f" {format_bytes(size)}. Download it again."
        )
    return GgufFile(path, metadata, dict(types.most_common()), parameters, tensor_bytes, has_output)


def _refuse_unknown(file: GgufFile) -> None:
    architecture = str(file.metadata.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise PlanError(
            f"{file.path} holds a model of architecture {architecture!r}"
            f"{did_you_mean(architecture, ARCHITECTURES)} Read here are"
            f" {', '.join(ARCHITECTURES)}; for others use the model's Hugging Face folder."
        )
    if not file.parameters:
        raise PlanError(f"{file.path} holds no weights (a vocabulary alone?).")
    if "tokenizer.ggml.tokens" not in file.metadata:
        raise PlanError(
            f"{file.path} has no tokenizer (tokenizer.ggml.tokens), so nothing can be trained on"
            " it. Use the model's Hugging Face folder, or a file that has one."
        )


def config_values(file: GgufFile) -> JsonDict:
    """Return the values of the transformers config that the file describes.

    Raises:
        PlanError: a size that every model has is missing.
    """
    # Values only; it brings neither torch nor gguf.
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING  # noqa: PLC0415

    architecture = str(file.metadata["general.architecture"])
    names = GGUF_CONFIG_MAPPING[architecture]
    values = {
        names[name]: value
        for key, value in file.metadata.items()
        if names.get(name := key.removeprefix(f"{architecture}."))
    }
    tokens = file.metadata["tokenizer.ggml.tokens"]
    values.setdefault("vocab_size", len(tokens) if isinstance(tokens, list) else tokens)
    missing = {"num_hidden_layers", "hidden_size", "num_attention_heads"} - values.keys()
    if missing:
        raise PlanError(f"{file.path} does not say its {', '.join(sorted(missing))}.")
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if not isinstance(values[name], int) or values[name] < 1:
            raise PlanError(f"{file.path} is damaged: its {name} is {values[name]!r}.")
    return {
        "model_type": ARCHITECTURES[architecture],
        "tie_word_embeddings": not file.has_output,
        **values,
    }
