"""Published models from the hub, a folder, or a run of brimful: tokenizer, weights on the device,
4-bit layers, adapters.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    Mxfp4Config,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file

from brimful.base.errors import BrimfulError, DeviceError, PlanError, RecipeError
from brimful.base.libraries import how_to_install, refuse_unfit_adapters
from brimful.base.manifest import require_sound
from brimful.base.strict_json import load_json
from brimful.base.types import Json, JsonDict
from brimful.model.adapters import make_room, out_of_reach, rows_to_train
from brimful.model.catalog import config_of_model, has_fused_attention
from brimful.model.fingerprint import folder_fingerprint
from brimful.model.packed_experts import compute_packed, packed_when_loaded, unpack
from brimful.model.quick_layers import adapt_quickly, normalise_as_usual
from brimful.model.quiet import (
    compiled_when_called,
    quiet_bitsandbytes,
    without_progress_bars,
)
from brimful.model.registered import register
from brimful.model.tokenizer import unreadable
from brimful.recipe import AdapterRecipe
from brimful.recipe.adapter_folder import base_and_section, disagreements

ModelT = TypeVar("ModelT", bound=nn.Module)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NF4_CAPABILITY = (6, 0)
"""Lowest CUDA compute capability of bitsandbytes' 4-bit kernels (its installation guide, 0.50)."""
_TRAINED = re.compile(r"lora_|trainable_tokens_delta")
"""What names of trained weights contain in a folder of adapters."""
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class Loading:
    """How a published model is loaded onto a device.

    Attributes:
        weights: dtype of the weights that are not quantised.
        quantize: nf4 stores linear layers in 4 bits with double quantisation (Dettmers et al.
            2023); products run in `weights`.
        packs_experts: With nf4, experts are stored like linear layers (`packed_experts.py`).
        attention: transformers' attention implementation.
        device: Where the weights are loaded.
        trust_custom_code: Consent to run code that comes with the model.
    """

    weights: str
    attention: str
    device: torch.device
    quantize: str = "none"
    packs_experts: bool = False
    trust_custom_code: bool = False


def load_model(source: str | Path, how: Loading) -> PreTrainedModel:
    """Load a causal language model with its published weights, in eval mode, with no frozen
    parameters and no adapters.

    Raises:
        PlanError: not found, not readable, weights that do not belong to its config, or 4-bit
            layers where they cannot run.
    """
    register()
    # Raises a clear error for a wrong name before anything is read.
    config_of_model(str(source), trust_custom_code=how.trust_custom_code)
    refuse_unsafe_files(source)
    settings: JsonDict = {
        "dtype": DTYPES[how.weights],
        "attn_implementation": how.attention,
        "use_safetensors": True,
    }
    trusted: JsonDict = {"trust_remote_code": how.trust_custom_code}
    with (
        reading(lambda error: unreadable("model", source, error)),
        without_progress_bars(),
        quiet_bitsandbytes(),
        ExitStack() as stack,
    ):
        config = AutoConfig.from_pretrained(source, **trusted)
        packing = getattr(config, "quantization_config", None) or {}
        in_mxfp4 = packing.get("quant_method") == "mxfp4"
        if how.quantize == "nf4":
            settings |= {"quantization_config": _nf4(how), "device_map": {"": str(how.device)}}
            if how.packs_experts or in_mxfp4:
                stack.enter_context(packed_when_loaded(packs=how.packs_experts, in_mxfp4=in_mxfp4))
            if in_mxfp4:  # with both, transformers refuses
                del config.quantization_config
        elif in_mxfp4:  # whose kernels train nothing
            settings["quantization_config"] = Mxfp4Config(dequantize=True)
        model, info = AutoModelForCausalLM.from_pretrained(
            source, config=config, output_loading_info=True, **trusted, **settings
        )
    refuse_missing(absent_weights(info), source)
    loaded: PreTrainedModel = model if how.quantize == "nf4" else model.to(how.device)
    _keep_4bit_weights_as_they_are(loaded)
    if how.packs_experts:
        compute_packed(loaded, unpack)
    return loaded.eval()


def tensors_not_finite(model: nn.Module) -> list[str]:
    """Return the names of weights that hold infinities or values that are no numbers."""
    return [
        name
        for name, parameter in model.named_parameters()
        if not bool(torch.isfinite(parameter).all())
    ]


def refuse_broken_weights(model: nn.Module, source: str) -> None:
    """Raise PlanError if a published model was loaded with weights that are not finite."""
    if names := tensors_not_finite(model):
        listed = ", ".join(names[:3]) + " ..." * (len(names) > 3)
        raise PlanError(
            f"{source} cannot be trained: {len(names)} of its tensors hold NaN or infinities"
            f" ({listed}). Get a whole copy of it, or choose another model=NAME."
        )


def refuse_unsafe_files(source: str | Path) -> None:
    """Raise an error before weights are read that are damaged, no safetensors, or not in the
    model's own folder.

    Raises:
        RunFolderError: a folder differs from its MANIFEST.json (brimful writes one).
        PlanError: the list of several weight files names anything but .safetensors beside it.
    """
    if Path(source).is_dir():
        require_sound(Path(source))
    index = cached_file(
        source,
        SAFE_WEIGHTS_INDEX_NAME,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if index is None:
        return
    try:
        named = set(load_json(Path(index).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable("model", source, error) from error
    unsafe = sorted(
        str(name)
        for name in named
        if not isinstance(name, str)
        or Path(name).name != name
        or "\\" in name
        or not name.endswith(".safetensors")
    )
    if unsafe:
        raise PlanError(
            f"{SAFE_WEIGHTS_INDEX_NAME} of {source} names {', '.join(map(repr, unsafe[:3]))}."
            " brimful opens .safetensors files beside it only: other formats can run code, other"
            " folders are not part of the model. Get the model from a source you trust, or save it"
            " again with save_pretrained."
        )


def _keep_4bit_weights_as_they_are(model: nn.Module) -> None:
    """Switch off that bitsandbytes repacks 4-bit weights in eval mode on CPUs with AVX512-BF16.

    It rounds their scales to bf16 and restores them "best-effort" in training mode (0.50,
    nn/modules.py), so every evaluation would change the frozen base; it also fails for widths that
    are no multiple of 64.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def hold_weights(model: ModelT, weights: str) -> ModelT:
    """Convert the parameters of a model in fp32 to another type, in place; buffers stay as they
    are, as rotary tables need their digits. Returns the model.

    Args:
        weights: fp32, bf16 or fp16.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(DTYPES[weights])
    return model


def copy_mapped_weights(model: nn.Module) -> None:
    """Copy weights that are mapped from a file, in place, into memory of the process.

    Weights loaded in the type of their file stay a view of it: they lie unaligned, their memory is
    not the process's until they change, and when memory is short every step reads the disk.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and not tensor.untyped_storage().resizable():
            tensor.data = tensor.data.clone()


def import_adapters(*, quantized: bool = True) -> None:
    """Import the library of adapters, so that the 50 MiB it takes count as held when memory is
    planned, whether or not an earlier step of planning needed it.

    Args:
        quantized: The base is in 4 bits, so that torch's compiler, which unpacks it on a CPU, will
            be needed and counts, too. Else it is not imported, which saves a second.

    Raises:
        LibraryError: the installed version does not fit that of transformers.
    """
    refuse_unfit_adapters()
    with quiet_bitsandbytes(), nullcontext() if quantized else compiled_when_called():
        importlib.import_module("peft")


def attach_adapters(
    model: PreTrainedModel, adapter: AdapterRecipe, *, seed: int, tokens: Sequence[int] = ()
) -> None:
    """Attach LoRA adapters in place, in fp32, and freeze everything else but the rows of `tokens`
    in embedding and head. The weights of fresh ones depend on `seed` only; others are those of the
    folder that they go on from.

    Raises:
        RecipeError: the targets match no linear layer, or the folder's adapters have other
            settings.
        PlanError: the folder's adapters are damaged, or made for another model.
    """
    import_adapters()
    # Importing peft takes half a second that full training does not need.
    from peft import LoraConfig  # noqa: PLC0415

    targets: str | list[str] = "all-linear"
    if adapter.targets != "all-linear":
        targets = adapter.target_names
        refuse_unmatched(targets, model)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.resolved_alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        task_type="CAUSAL_LM",
        exclude_modules=out_of_reach(model) or None,
        trainable_token_indices=rows_to_train(model, tokens),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        _attach(model, config)
    if adapter.start is not None:
        _, own = base_and_section(Path(adapter.start))
        section = adapter.model_dump() | {"alpha": adapter.resolved_alpha}
        if adapter.targets == "all-linear" and isinstance(own["targets"], list):
            # Trained adapters name the layers that these are.
            (section["targets"],) = (each.target_modules for each in model.peft_config.values())
        if problems := disagreements(section, own, adapter.start):
            raise RecipeError("\n".join(problems))
        _fill_adapters(model, Path(adapter.start))


def _attach(model: PreTrainedModel, config: Any) -> None:
    """Add the adapters of a peft configuration, always in fp32; everything else is frozen."""
    rows = config.trainable_token_indices or {}
    make_room(model, [token for ids in rows.values() for token in ids])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.add_adapter(config)
    for attached in model.peft_config.values():
        # A set of names would be written in an order of chance into the exported model.
        if isinstance(attached.target_modules, set):
            attached.target_modules = sorted(attached.target_modules)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    adapt_quickly(model)


def refuse_unmatched(targets: list[str], model: nn.Module) -> None:
    """Raise RecipeError, with the names of the linear layers, if a target matches none of them."""
    unreached = set(out_of_reach(model))
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name not in unreached
    ]
    known = sorted({name.rsplit(".", 1)[-1] for name in linear} - {"lm_head", "embed_out"})
    endings = tuple(f".{name}" for name in linear)
    unmatched = [
        target for target in targets if not any(name.endswith(f".{target}") for name in endings)
    ]
    if unmatched:
        raise RecipeError(
            f"adapter.targets: no linear layer is named {', '.join(unmatched)}. This model has"
            f" {', '.join(known)}; all-linear takes all of them."
        )


def inference_attention(source: str | Path) -> str:
    """Return the attention for scoring and generation: torch's fused kernels, except for models
    with capped scores (Gemma 2), which those kernels cannot compute, or without a class for them.
    """
    config = config_of_model(str(source))
    softcap = getattr(config, "attn_logit_softcapping", None)
    return "eager" if softcap or not has_fused_attention(config.model_type) else "sdpa"


def fingerprint_of(source: str | Path, model: PreTrainedModel) -> str:
    """Return the identity of a published model: the commit on the hub, or the fingerprint of a
    folder.
    """
    commit = getattr(model.config, "_commit_hash", None)
    if commit and not Path(source).is_dir():
        return str(commit)
    return folder_fingerprint(Path(source))


def has_adapters(model: nn.Module) -> bool:
    """Return whether adapters are attached in place."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model, or the adapters alone with the rows that were trained beside them: where rows
    were added to the embedding, PEFT would store all of it.
    """
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    from peft import get_peft_model_state_dict  # noqa: PLC0415 - as in attach_adapters

    stored = get_peft_model_state_dict(model, save_embedding_layers=False)
    model.get_adapter_state_dict = lambda **_: stored
    try:
        model.save_pretrained(folder)
    finally:
        del model.get_adapter_state_dict


def is_adapter_folder(folder: Path) -> bool:
    """Return whether a folder holds adapters in PEFT layout rather than a whole model."""
    return (folder / ADAPTER_FILES[0]).is_file()


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Load the trained adapters of a PEFT folder onto the model they were trained on, in place.

    Raises:
        PlanError: the adapters are damaged, or made for another model.
    """
    import_adapters()
    # Importing peft takes half a second that full training does not need.
    from peft import PeftConfig  # noqa: PLC0415

    with _reading_adapters(folder, model):
        _attach(model, PeftConfig.from_pretrained(str(folder)))
    _fill_adapters(model, folder)
    model.eval()


def _reading_adapters(folder: Path, model: PreTrainedModel) -> AbstractContextManager[None]:
    return reading(
        lambda error: _foreign_adapters(folder, model, " ".join(str(error).split())[:300])
    )


def _fill_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Replace the weights of attached adapters by those of a folder.

    Raises:
        PlanError: they are damaged, or made for another model.
    """
    from peft import set_peft_model_state_dict  # noqa: PLC0415 - as in attach_adapters

    with _reading_adapters(folder, model):
        stored = {
            name.removeprefix("base_model.model."): tensor
            for name, tensor in load_file(folder / ADAPTER_FILES[1]).items()
        }
        if others := [name for name in stored if not _TRAINED.search(name)]:
            raise ValueError(f"{', '.join(others[:3])} are no LoRA weights")
        result = set_peft_model_state_dict(model, stored)
    # A head that shares the embedding's rows has none of its own.
    own = {name for name, _ in model.named_parameters() if _TRAINED.search(name)}
    missing = [name for name in result.missing_keys if name in own]
    if unmatched := [*result.unexpected_keys, *missing]:
        raise _foreign_adapters(folder, model, f"{', '.join(unmatched[:3])} do not match")


def merge_adapters(model: PreTrainedModel) -> frozenset[str]:
    """Merge the adapters into the weights of their layers, in place; the model has no adapters
    afterwards.

    Weights should be in fp32: in a shorter type the adapters' product is rounded before it is
    added, and the sum is rounded again.

    Returns:
        Names of the weights that changed.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 - as in attach_adapters

    adapted = {
        name.removesuffix(".token_adapter"): module
        for name, module in model.named_modules()
        if isinstance(module, BaseTunerLayer)
    }
    for name, module in reversed(adapted.items()):  # several of one layer lie in one another
        module.merge()
        model.set_submodule(name, module.get_base_layer())
    model.delete_adapter(list(model.peft_config))
    normalise_as_usual(model)
    return frozenset(
        f"{name.replace('.base_layer', '')}.{getattr(module, 'parameter_name', 'weight')}"
        for name, module in adapted.items()
    )


def _foreign_adapters(folder: Path, model: PreTrainedModel, reason: str) -> PlanError:
    base = model.config._name_or_path
    return PlanError(
        f"the adapters in {folder} do not belong to the model {base} ({type(model).__name__}), or"
        f" are damaged: {reason}"
    )


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """While entered, the adapters are disabled, so that the model is its base. A model without
    adapters stays as it is.
    """
    if has_adapters(model):
        model.disable_adapters()
    try:
        yield
    finally:
        if has_adapters(model):
            model.enable_adapters()


def require_nf4(device: torch.device) -> None:
    """Raise DeviceError if 4-bit layers cannot run: without bitsandbytes, on Apple GPUs, on CUDA
    devices before Pascal.
    """
    if find_spec("bitsandbytes") is None:
        raise DeviceError(
            f"quantize=nf4 needs bitsandbytes, which is not installed. {how_to_install('quantize')}"
        )
    if device.type == "mps":
        raise DeviceError(
            "quantize=nf4 is not measured on Apple GPUs; use quantize=none, or plan.device=cpu."
        )
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < NF4_CAPABILITY:
        raise DeviceError(
            f"quantize=nf4 needs compute capability {NF4_CAPABILITY[0]}.{NF4_CAPABILITY[1]}; this"
            " GPU is older. Use quantize=none."
        )


def _nf4(how: Loading) -> BitsAndBytesConfig:
    require_nf4(how.device)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=DTYPES[how.weights],
    )


@contextmanager
def reading(explain: Callable[[Exception], Exception]) -> Iterator[None]:
    """Replace what libraries raise for damaged or unsuitable files, which can be any class, by
    `explain(error)`; running out of memory and errors of ours are raised as they are.
    """
    try:
        yield
    except (BrimfulError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise explain(error) from error


def absent_weights(info: Json) -> list[str]:
    """Return, from transformers' loading info, the names of weights that were not loaded because
    they are missing or have another shape.
    """
    return sorted(
        str(key[0]) if isinstance(key, tuple) else str(key)
        for key in (*info["missing_keys"], *info["mismatched_keys"])
    )


def refuse_missing(missing: Sequence[str], source: str | Path) -> None:
    """Raise PlanError with the first names if weights are missing."""
    if missing:
        raise PlanError(
            f"the weights of {source} are not those of its config.json:"
            f" {', '.join(missing[:5])}{' ...' * (len(missing) > 5)}."
        )
