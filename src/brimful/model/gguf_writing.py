"""A model folder in Hugging Face layout as one GGUF file, tensor by tensor.

Keys, names of tensors, types and rounding are those of the package gguf, and finer rounding is
llama.cpp's own; how the weights of an architecture are laid out differently is a row here. What a
file could not say exactly is refused by name.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from brimful.base.discover import did_you_mean
from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install, installed_version
from brimful.base.text import shortened
from brimful.base.types import Json, JsonDict, Texts
from brimful.model.catalog import config_of_model
from brimful.model.gguf_vocabulary import vocabulary_of
from brimful.model.tokenizer import load_tokenizer

GgufType = Literal["q4_k_m", "q5_k_m", "q8_0", "bf16", "f16", "f32"]
BITS_PER_WEIGHT: Mapping[GgufType, float] = {
    "f32": 32,
    "f16": 16,
    "q8_0": 8.5,
    "bf16": 16,
    "q5_k_m": 5.7,
    "q4_k_m": 4.9,
}
"""Those of mixed types as llama.cpp states them for Llama 3.1 8B (tools/quantize/README.md)."""
MIXED: Sequence[GgufType] = ("q4_k_m", "q5_k_m")
"""Types that llama.cpp alone writes: the package gguf rounds to none of their kinds."""
ORIGIN = "brimful.origin"
BLOCK = 32
"""Weights of a row that share a scale in Q8_0; rows of another length stay in F16."""
KEPT_IN_FP32 = ("position_embd.weight", ".ffn_gate_inp.weight")
"""Matrices that llama.cpp reads in fp32 only, beside all vectors."""
SETTINGS: Texts = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "head_count",
    "num_key_value_heads": "head_count_kv",
    "rms_norm_eps": "layer_norm_rms_eps",
    "layer_norm_eps": "layer_norm_eps",
    "layer_norm_epsilon": "layer_norm_eps",
    "sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "vocab_size": "vocab_size",
}
"""The config's key -> the end of the name of the writer's method that adds it."""
INTERLEAVED: Texts = {
    f"self_attn.{part}_proj.{kind}": heads
    for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
    for kind in ("weight", "bias")
}
"""Endings of the weights whose rows are pairs of rotated positions, which GGUF has side by side and
transformers half a head apart; with the config's key of their number of heads.
"""


@dataclass(frozen=True)
class Layout:
    """How a model type of transformers is written.

    Attributes:
        name: GGUF's name of the architecture.
        required: Gives for a config its key -> the values that the architecture stands for.
        positions: Kinds of rotary positions that are written.
        interleaved: Whether rotated rows are interleaved, see `INTERLEAVED`.
        norms_from_1: Weights of norms are stored less 1, and written whole.
        transposed: Endings of the weights that transformers has the other way round.
    """

    name: str
    required: Callable[[PretrainedConfig], Mapping[str, tuple[Any, ...]]]
    positions: tuple[str, ...] = ("default", "linear")
    interleaved: bool = False
    norms_from_1: bool = False
    transposed: tuple[str, ...] = ()


def _every(number: int, last: Any, other: Any) -> Callable[[PretrainedConfig], list[Any]]:
    """Return what says for each layer of a config which kind it is: the last one of so many is
    another than those before.
    """
    return lambda config: [
        other if (layer + 1) % number else last for layer in range(config.num_hidden_layers)
    ]


def _gemma(
    full_every: int, layers_of_27b: int
) -> Callable[[PretrainedConfig], Mapping[str, tuple[Any, ...]]]:
    kinds = _every(full_every, "full_attention", "sliding_attention")

    def required(config: PretrainedConfig) -> Mapping[str, tuple[Any, ...]]:
        is_27b = config.num_hidden_layers == layers_of_27b
        return {
            "hidden_activation": ("gelu_pytorch_tanh",),
            "layer_types": (kinds(config),),
            "query_pre_attn_scalar": (
                config.hidden_size // config.num_attention_heads if is_27b else config.head_dim,
            ),
            "use_bidirectional_attention": (None, False),
            "attention_bias": (False,),
            "tie_word_embeddings": (True,),
        }

    return required


def _qwen(**more: tuple[Any, ...]) -> Callable[[PretrainedConfig], Mapping[str, tuple[Any, ...]]]:
    return lambda _: {"hidden_act": ("silu",), "use_sliding_window": (False, None), **more}


def _phi3(config: PretrainedConfig) -> Mapping[str, tuple[Any, ...]]:
    """llama.cpp attends to all positions: a window must hold them."""
    window = config.sliding_window
    holds_all = window is None or window >= config.max_position_embeddings
    return {"hidden_act": ("silu",), "sliding_window": (window,) if holds_all else (None,)}


_LLAMA = Layout(
    "llama",
    lambda _: {"hidden_act": ("silu",), "sliding_window": (None,)},
    ("default", "linear", "llama3"),
    interleaved=True,
)
LAYOUTS: Mapping[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "smollm3": Layout(
        "smollm3",
        lambda config: {
            **_qwen(attention_bias=(False,), mlp_bias=(False,))(config),
            "no_rope_layers": (_every(4, 0, 1)(config),),
        },
        interleaved=True,
    ),
    "qwen2": Layout("qwen2", _qwen()),
    "qwen3": Layout("qwen3", _qwen(attention_bias=(False,))),
    "qwen3_moe": Layout(
        "qwen3moe",
        _qwen(
            attention_bias=(False,),
            norm_topk_prob=(True,),
            decoder_sparse_step=(1,),
            mlp_only_layers=([], None),
        ),
    ),
    "gemma2": Layout("gemma2", _gemma(2, 46), norms_from_1=True),
    "gemma3_text": Layout("gemma3", _gemma(6, 62), norms_from_1=True),
    "phi": Layout(
        "phi2",
        lambda config: {
            "hidden_act": ("gelu_new", "gelu_pytorch_tanh"),
            "qk_layernorm": (False,),
            "num_key_value_heads": (config.num_attention_heads,),
            "intermediate_size": (4 * config.hidden_size,),
        },
    ),
    "phi3": Layout("phi3", _phi3, ("default", "longrope")),
    "gpt2": Layout(
        "gpt2",
        lambda _: {
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        },
        transposed=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
    ),
}
"""Layouts by transformers' model type."""


def refuse_unwritable(config: PretrainedConfig, kind: GgufType) -> Layout:
    """Return how a model is written.

    Raises:
        RequestError: a package is missing; or the model is of another type, or has settings that
            its GGUF architecture does not stand for.
    """
    if kind in MIXED and find_spec("llama_cpp") is None:
        raise RequestError(
            f"--gguf {kind} is rounded by llama.cpp, which the package llama-cpp-python holds, and"
            " that is not installed. Without it, write --gguf bf16 and run llama.cpp's own"
            f" `llama-quantize FILE.gguf {kind}`. {how_to_install('gguf-mixed')}"
        )
    model_type = str(config.model_type)
    if model_type not in LAYOUTS:
        raise RequestError(
            f"models of type {model_type} are not written as GGUF"
            f"{did_you_mean(model_type, LAYOUTS)} Written are {', '.join(LAYOUTS)}. For others, run"
            " `brimful export` without --gguf and convert its folder with llama.cpp's"
            " convert_hf_to_gguf.py, if that knows the type."
        )
    layout = LAYOUTS[model_type]
    others = [
        f"{key} {shortened(str(getattr(config, key)), 60)}"
        for key, allowed in layout.required(config).items()
        if hasattr(config, key) and getattr(config, key) not in allowed
    ]
    if (positions := _positions(config)) not in layout.positions:
        others.append(f"rope_type {positions}")
    if others:
        raise RequestError(
            f"this {model_type} model is not written as GGUF, because of its {', '.join(others)}."
            " Run `brimful export` without --gguf and convert its folder with llama.cpp's"
            " convert_hf_to_gguf.py."
        )
    return layout


def _rope(config: PretrainedConfig) -> Json:
    """Return the rotary positions, of models with two kinds of layers those that see all."""
    found: JsonDict = getattr(config, "rope_parameters", None) or {}
    return dict(found.get("full_attention", found))


def _positions(config: PretrainedConfig) -> str:
    return str(_rope(config).get("rope_type", "default"))


def origin_in(path: Path) -> str:
    """Return what a GGUF file says it was made of; empty where it says nothing or is none."""
    from gguf import GGUFReader  # noqa: PLC0415 - for files alone

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
    config = config_of_model(str(folder))
    layout = refuse_unwritable(config, kind)
    if kind in MIXED:
        whole = path.with_name(f"bf16-{path.name}")
        write_gguf(folder, whole, "bf16", name, origin)
        _round_by_llama_cpp(whole, path, kind)
        whole.unlink()
        return
    # An extra, whose absence is told first.
    from gguf import (  # noqa: PLC0415
        MODEL_ARCH_NAMES,
        GGUFWriter,
        LlamaFileType,
        get_tensor_name_map,
        quantize,
    )

    writer = GGUFWriter(path, layout.name)
    writer.add_name(name)
    writer.add_string("general.quantized_by", f"brimful {installed_version()}")
    if origin:
        writer.add_string(ORIGIN, origin)
    writer.add_file_type(LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    _add_settings(writer, config)
    _add_vocabulary(writer, folder, int(config.vocab_size))
    number = next(each for each, known in MODEL_ARCH_NAMES.items() if known == layout.name)
    names = get_tensor_name_map(number, int(config.num_hidden_layers))
    for own, parts in _stored(folder, config).items():
        written = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if written is None:
            raise RequestError(f"GGUF has no name for the tensor {own} of this model.")
        values = _lazily(own, parts, layout, config)
        stored = _type_of(written, values.shape, kind)
        writer.add_tensor(written, quantize(values, stored), raw_dtype=stored)
    for written, factors in _add_positions(writer, config):
        writer.add_tensor(f"{written}.weight", factors.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _round_by_llama_cpp(whole: Path, path: Path, kind: GgufType) -> None:
    """Write a file anew with the mixture of types that llama.cpp has for a kind."""
    import llama_cpp  # noqa: PLC0415 - for files alone

    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(path).encode(), how):
        raise RequestError(
            f"llama.cpp could not round the model to {kind}. Write --gguf bf16 or q8_0."
        )


def _add_settings(writer: Any, config: PretrainedConfig) -> None:
    from gguf import RopeScalingType  # noqa: PLC0415 - for files alone

    for own, key in SETTINGS.items():
        if (value := getattr(config, own, None)) is not None:
            getattr(writer, f"add_{key}")(value)
    rope = _rope(config)
    if not rope:  # GPT-2
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        return
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * head))
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if local := config.rope_parameters.get("sliding_attention"):
        writer.add_rope_freq_base_swa(float(local["rope_theta"]))
    if _positions(config) == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))


def _add_positions(writer: Any, config: PretrainedConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the factors by which rotary positions turn more slowly, by GGUF's name; add what goes
    with them.
    """
    from gguf import MODEL_TENSOR, TENSOR_NAMES  # noqa: PLC0415 - for files alone

    rope, kind = _rope(config), _positions(config)
    if kind == "llama3":
        scaled, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        steps = torch.arange(0, 2 * len(scaled), 2) / (2 * len(scaled))
        yield TENSOR_NAMES[MODEL_TENSOR.ROPE_FREQS], rope["rope_theta"] ** -steps / scaled
    if kind == "longrope":
        _, attention = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        writer.add_rope_scaling_attn_factors(attention)
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        yield TENSOR_NAMES[MODEL_TENSOR.ROPE_FACTORS_LONG], torch.tensor(rope["long_factor"])
        yield TENSOR_NAMES[MODEL_TENSOR.ROPE_FACTORS_SHORT], torch.tensor(rope["short_factor"])


def _add_vocabulary(writer: Any, folder: Path, size: int) -> None:
    tokenizer = load_tokenizer(folder)
    found = vocabulary_of(tokenizer, size)
    writer.add_tokenizer_model(found.model)
    writer.add_tokenizer_pre(found.splitting)
    writer.add_token_list(list(found.tokens))
    writer.add_token_types(list(found.kinds))
    if found.model == "gpt2":
        writer.add_token_merges(list(found.merges))
    else:
        writer.add_token_scores(list(found.scores))
        writer.add_add_space_prefix(found.begins_with_space)
    writer.add_add_bos_token(found.begins)
    ids = {
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "unk": tokenizer.unk_token_id,
        "pad": tokenizer.pad_token_id,
        "eot": _end_of_turn(folder, tokenizer.eos_token_id),
    }
    for key, id_ in ids.items():
        if id_ is not None:
            getattr(writer, f"add_{key}_token_id")(id_)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _end_of_turn(folder: Path, end_of_text_id: int) -> int | None:
    """Return the first token beside end-of-text that ends an answer; None if there is none."""
    if not (folder / "generation_config.json").is_file():
        return None
    ids = GenerationConfig.from_pretrained(folder).eos_token_id or []
    others = [each for each in (ids if isinstance(ids, list) else [ids]) if each != end_of_text_id]
    return others[0] if others else None


def _stored(folder: Path, config: PretrainedConfig) -> dict[str, list[tuple[Path, str]]]:
    """Return where each weight lies, but that of an output that is the embedding; of experts, whose
    weights are one in GGUF, where each part does, in their order.
    """
    found: dict[str, dict[int, tuple[Path, str]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names: list[str] = file.keys()
        for name in names:
            is_tied = name == "lm_head.weight" and config.tie_word_embeddings
            is_mask = name.endswith((".attn.bias", ".attn.masked_bias"))  # of old GPT-2 files
            if not is_tied and not is_mask:
                expert = re.search(r"\.experts\.(\d+)\.", name)
                own = name if expert is None else name.replace(expert[0], ".experts.")
                number = 0 if expert is None else int(expert[1])
                found.setdefault(own, {})[number] = path, name
    return {own: [parts[number] for number in sorted(parts)] for own, parts in found.items()}


def _lazily(
    own: str, parts: list[tuple[Path, str]], layout: Layout, config: PretrainedConfig
) -> Any:
    """Return a weight as the package gguf takes those that are read when they are written."""
    from gguf import LazyNumpyTensor  # noqa: PLC0415 - for files alone

    path, name = parts[0]
    with safe_open(path, "pt") as file:
        shape = tuple(file.get_slice(name).get_shape())
    if own.endswith(layout.transposed):
        shape = shape[::-1]
    if len(parts) > 1:
        shape = (len(parts), *shape)
    return LazyNumpyTensor(
        meta=LazyNumpyTensor.meta_with_dtype_and_shape("float32", shape),
        args=(parts,),
        func=lambda parts: _laid_out(own, parts, layout, config).numpy(),
    )


def _laid_out(
    own: str, parts: list[tuple[Path, str]], layout: Layout, config: PretrainedConfig
) -> Tensor:
    """Read a weight, as GGUF lays it out, in fp32."""
    read = []
    for path, name in parts:
        with safe_open(path, "pt") as file:
            read.append(file.get_tensor(name).float())
    if len(read) > 1:
        return torch.stack(read)
    tensor: Tensor = read[0]
    if own.endswith(layout.transposed):
        return tensor.T.contiguous()
    if layout.norms_from_1 and own.endswith("norm.weight"):
        return tensor + 1
    ending = next((each for each in INTERLEAVED if own.endswith(each)), None)
    if ending is None or not layout.interleaved:
        return tensor
    heads = int(getattr(config, INTERLEAVED[ending]))
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _type_of(name: str, shape: tuple[int, ...], kind: GgufType) -> Any:
    from gguf import GGMLQuantizationType  # noqa: PLC0415 - for files alone

    if len(shape) < 2 or name.endswith(KEPT_IN_FP32):
        return GGMLQuantizationType.F32
    if kind == "q8_0" and shape[-1] % BLOCK:
        return GGMLQuantizationType.F16
    return GGMLQuantizationType[kind.upper()]
