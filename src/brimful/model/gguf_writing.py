"""A model folder in Hugging Face layout as one GGUF file, tensor by tensor.

The names of tensors are those of the package gguf; how the weights of an architecture are laid out
differently is a row here. What a file could not say exactly is refused by name.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig

from brimful.base.discover import did_you_mean
from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.version import installed_version
from brimful.model.catalog import config_of_model
from brimful.model.gguf_vocabulary import vocabulary_of
from brimful.model.published import load_tokenizer

GgufType = Literal["q8_0", "bf16", "f16", "f32"]
FILE_TYPES: Mapping[GgufType, int] = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
"""By type: llama.cpp's number of a file whose matrices have it (`general.file_type`)."""
BITS_PER_WEIGHT: Mapping[GgufType, float] = {"f32": 32, "f16": 16, "q8_0": 8.5, "bf16": 16}
ORIGIN = "brimful.origin"
BLOCK = 32
"""Weights of a row that share a scale in Q8_0; rows of another length stay in F16."""
KEPT_IN_FP32 = ("position_embd.weight",)
"""Matrices that llama.cpp reads in fp32 only, beside all vectors."""


@dataclass(frozen=True)
class Layout:
    """How a model type of transformers is written.

    Attributes:
        name: GGUF's name of the architecture.
        settings: GGUF's key -> the config's, for whole numbers and real ones.
        required: The config's key -> the values that the architecture stands for.
        interleaved: Endings of the weights whose rows are pairs of rotated positions, which GGUF
            has side by side and transformers half a head apart; with the config's key of their
            number of heads.
        transposed: Endings of the weights that transformers has the other way round.
    """

    name: str
    settings: Mapping[str, str]
    required: Mapping[str, tuple[Any, ...]]
    interleaved: Mapping[str, str]
    transposed: tuple[str, ...] = ()


_ROTARY = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_LLAMA = Layout(
    "llama",
    _ROTARY,
    {"hidden_act": ("silu",), "sliding_window": (None,)},
    {
        f"self_attn.{part}_proj.{kind}": heads
        for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
        for kind in ("weight", "bias")
    },
)
_QWEN = {"hidden_act": ("silu",), "use_sliding_window": (False, None)}
_GPT2 = Layout(
    "gpt2",
    {
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "block_count": "n_layer",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    {},
    (".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
)
LAYOUTS: Mapping[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": Layout("qwen2", _ROTARY, _QWEN, {}),
    "qwen3": Layout("qwen3", _ROTARY, _QWEN | {"attention_bias": (False,)}, {}),
    "gpt2": _GPT2,
}
"""By transformers' model type."""


def refuse_unwritable(config: PretrainedConfig) -> Layout:
    """Return how a model is written.

    Raises:
        RequestError: the package gguf is missing; or the model is of another type, or has settings
            that its GGUF architecture does not stand for.
    """
    if find_spec("gguf") is None:
        raise RequestError(
            f"--gguf needs the package gguf, which is not installed. {how_to_install('gguf')}"
        )
    kind = str(config.model_type)
    if kind not in LAYOUTS:
        raise RequestError(
            f"models of type {kind} are not written as GGUF{did_you_mean(kind, LAYOUTS)} Written"
            f" are {', '.join(LAYOUTS)}. For others, run `brimful export` without --gguf and"
            " convert its folder with llama.cpp's convert_hf_to_gguf.py, if that knows the type."
        )
    layout = LAYOUTS[kind]
    others = [
        f"{key} {getattr(config, key)}"
        for key, allowed in layout.required.items()
        if hasattr(config, key) and getattr(config, key) not in allowed
    ]
    if (scaling := _rope(config).get("rope_type", "default")) != "default":
        others.append(f"rope_type {scaling}")
    if others:
        raise RequestError(
            f"this {kind} model is not written as GGUF, because of its {', '.join(others)}. Run"
            " `brimful export` without --gguf and convert its folder with llama.cpp's"
            " convert_hf_to_gguf.py."
        )
    return layout


def _rope(config: PretrainedConfig) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def origin_in(path: Path) -> str:
    """Return what a GGUF file says it was made of; empty where it says nothing or is none."""
    from gguf import GGUFReader  # noqa: PLC0415 - an extra

    with suppress(ValueError, OSError, IndexError, KeyError):
        field = GGUFReader(path).get_field(ORIGIN)
        return str(field.contents()) if field is not None else ""
    return ""


def write_gguf(folder: Path, path: Path, kind: GgufType, name: str, origin: str = "") -> None:
    """Write the model of a folder into a GGUF file with its tokenizer and chat template.

    Vectors and positions stay in fp32; a matrix whose rows are no multiple of 32 long is in F16
    where Q8_0 is asked for. One tensor at a time is in memory.

    Args:
        folder: config.json, safetensors, tokenizer.
        path: The new file.
        kind: Type of the matrices.
        name: The model's name in the file.
        origin: Kept in the file, for `origin_in`.

    Raises:
        RequestError: as `refuse_unwritable`, or llama.cpp has no such tokenizer.
        PlanError: the folder cannot be read.
        OSError: the file cannot be written.
    """
    # An extra, whose absence is told first.
    config = config_of_model(str(folder))
    layout = refuse_unwritable(config)
    from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map  # noqa: PLC0415

    writer = GGUFWriter(path, layout.name)
    writer.add_name(name)
    writer.add_string("general.quantized_by", f"brimful {installed_version()}")
    if origin:
        writer.add_string(ORIGIN, origin)
    writer.add_file_type(FILE_TYPES[kind])
    _add_settings(writer, layout, config)
    _add_vocabulary(writer, folder, int(config.vocab_size))
    number = next(each for each, known in MODEL_ARCH_NAMES.items() if known == layout.name)
    names = get_tensor_name_map(number, int(config.num_hidden_layers))
    shapes = dict(_shapes(folder, config))
    written = {own: _name(names, own) for own in shapes}
    for own, shape in shapes.items():
        laid_out = shape[::-1] if own.endswith(layout.transposed) else shape
        _announce(writer, written[own], laid_out, _type_of(written[own], laid_out, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for own, tensor in _tensors(folder, shapes):
        turned = _turned(own, tensor, layout, config)
        writer.write_tensor_data(_stored(turned, _type_of(written[own], turned.shape, kind)))
    writer.close()


def _add_settings(writer: Any, layout: Layout, config: PretrainedConfig) -> None:
    for key, own in layout.settings.items():
        value = getattr(config, own)
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{layout.name}.{key}", value)
    if layout is _GPT2:
        inner = config.n_inner or 4 * config.n_embd
        writer.add_uint32("gpt2.feed_forward_length", inner)
        return
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        writer.add_uint32(f"{layout.name}.{key}", head)
    writer.add_float32(f"{layout.name}.rope.freq_base", float(_rope(config)["rope_theta"]))
    writer.add_uint32(f"{layout.name}.vocab_size", config.vocab_size)


def _add_vocabulary(writer: Any, folder: Path, size: int) -> None:
    tokenizer = load_tokenizer(folder)
    found = vocabulary_of(tokenizer, size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(found.splitting)
    writer.add_token_list(list(found.tokens))
    writer.add_token_types(list(found.kinds))
    writer.add_token_merges(list(found.merges))
    writer.add_add_bos_token(found.begins)
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "padding_token_id": tokenizer.pad_token_id,
        "eot_token_id": _end_of_turn(folder, tokenizer.eos_token_id),
    }
    for key, id_ in ids.items():
        if id_ is not None and id_ < size:
            writer.add_uint32(f"tokenizer.ggml.{key}", id_)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _end_of_turn(folder: Path, end_of_text_id: int) -> int | None:
    """Return the first token beside end-of-text that ends an answer; None if there is none."""
    if not (folder / "generation_config.json").is_file():
        return None
    ids = GenerationConfig.from_pretrained(folder).eos_token_id or []
    others = [each for each in (ids if isinstance(ids, list) else [ids]) if each != end_of_text_id]
    return others[0] if others else None


def _shapes(folder: Path, config: PretrainedConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the stored weights, but of an output that is the embedding."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names: list[str] = file.keys()
            for name in names:
                is_tied = name == "lm_head.weight" and config.tie_word_embeddings
                is_mask = name.endswith((".attn.bias", ".attn.masked_bias"))  # of old GPT-2 files
                if not is_tied and not is_mask:
                    yield name, tuple(file.get_slice(name).get_shape())


def _tensors(folder: Path, wanted: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights in the order of `_shapes`."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names: list[str] = file.keys()
            yield from ((name, file.get_tensor(name)) for name in names if name in wanted)


def _name(names: Any, own: str) -> str:
    found = names.get_name(own, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise RequestError(f"GGUF has no name for the tensor {own} of this model.")
    return str(found)


def _turned(own: str, tensor: Tensor, layout: Layout, config: PretrainedConfig) -> Tensor:
    """Return a weight as GGUF lays it out, in fp32."""
    tensor = tensor.float()
    if own.endswith(layout.transposed):
        return tensor.T.contiguous()
    ending = next((each for each in layout.interleaved if own.endswith(each)), None)
    if ending is None:
        return tensor
    heads = int(getattr(config, layout.interleaved[ending]))
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _type_of(name: str, shape: tuple[int, ...] | torch.Size, kind: GgufType) -> Any:
    from gguf import GGMLQuantizationType  # noqa: PLC0415 - an extra

    if len(shape) < 2 or name in KEPT_IN_FP32:
        return GGMLQuantizationType.F32
    if kind == "q8_0" and shape[-1] % BLOCK:
        return GGMLQuantizationType.F16
    return GGMLQuantizationType[kind.upper()]


def _announce(writer: Any, name: str, shape: tuple[int, ...], stored: Any) -> None:
    from gguf import GGML_QUANT_SIZES  # noqa: PLC0415 - an extra

    block, num_bytes = GGML_QUANT_SIZES[stored]
    in_bytes = (*shape[:-1], shape[-1] // block * num_bytes)
    size = prod(in_bytes)
    writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), size, raw_dtype=stored)


def _stored(tensor: Tensor, stored: Any) -> Any:
    from gguf import quantize  # noqa: PLC0415 - an extra

    return quantize(tensor.numpy(), stored)
