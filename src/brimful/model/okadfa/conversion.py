"""A published Llama model as one with kernel attention: its weights, random directions and a
temperature per head, as a model folder that is tuned like any other.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, PretrainedConfig

from brimful.base.console import Say
from brimful.base.errors import PlanError, RequestError
from brimful.base.types import Json
from brimful.base.units import format_count
from brimful.model.build import num_parameters
from brimful.model.catalog import config_of_model, needs_folder
from brimful.model.obtained import folder_of_model
from brimful.model.okadfa.kernel_attention import MOST_TEMPERATURE
from brimful.model.okadfa.kernel_llama import KernelLlamaConfig, KernelLlamaForCausalLM
from brimful.model.published import Loading, load_model
from brimful.model.quiet import without_progress_bars
from brimful.model.tokenizer import load_tokenizer

MOST_HEAD_SIZE = 128
"""Up to here features of keys stay within fp32 (`features.key_features`)."""


@dataclass(frozen=True)
class KernelSettings:
    """What conversion adds to a model.

    Attributes:
        features: Random features per head; None: four times the head size.
        temperature: Factor on the cosine of queries and keys at the start, at most 64.
        seed: Seed of the random directions.
    """

    features: int | None = None
    temperature: float = 2.0
    seed: int = 0


def convert_to_kernel(source: str, to: Path, settings: KernelSettings, say: Say) -> Path:
    """Write a published model with kernel attention in place of softmax attention into a new
    folder, with its tokenizer.

    Projections, norms and MLPs keep their weights. Queries and keys are brought to length 1, which
    they were not trained for, so the folder's model is the start of a training, not its end.

    Args:
        source: Source as a recipe's `model` names it.
        to: A folder that does not exist yet.

    Raises:
        PlanError: the model cannot be had or read, or is no Llama.
        RequestError: `to` exists, or a setting is out of its range.
    """
    if to.exists():
        raise RequestError(f"{to} exists already. Name a new folder, or remove it first.")
    name = str(folder_of_model(source, say)) if needs_folder(source) else source
    config = kernel_config(config_of_model(name), source, settings)
    model = load_model(name, Loading("fp32", "eager", torch.device("cpu")))
    with torch.random.fork_rng(devices=[]), without_progress_bars():
        converted = KernelLlamaForCausalLM(config)
        result = converted.load_state_dict(model.state_dict(), strict=False)
    own = ("log_temperature_G", "projection_GMD")
    if lost := [key for key in result.missing_keys if not key.endswith(own)]:
        raise PlanError(f"{source} has no weights named {', '.join(lost[:3])}.")
    if result.unexpected_keys:
        named = ", ".join(result.unexpected_keys[:3])
        raise PlanError(f"{source} has weights that Llama does not know: {named}.")
    aside = to.with_name(f"{to.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with without_progress_bars():
            converted.save_pretrained(aside)
            load_tokenizer(name).save_pretrained(aside)
        aside.rename(to)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RequestError(f"{to} cannot be written: {error.strerror or error}.") from error
    say(
        f"{to}: {format_count(num_parameters(converted))} parameters, kernel attention with"
        f" {config.num_features} features a head. Train it: model={to}"
    )
    return to


def kernel_config(
    config: PretrainedConfig, source: str, settings: KernelSettings
) -> KernelLlamaConfig:
    """Return the config of the converted model.

    Raises:
        PlanError: `config` is of another architecture than Llama, or its heads are too wide.
        RequestError: a setting is out of its range.
    """
    if type(config) is not LlamaConfig:
        raise PlanError(
            f"{source} is of the architecture {config.model_type}. Conversion to kernel attention"
            " takes llama (Llama, SmolLM2, TinyLlama, and models with the same config)."
        )
    head_size = int(config.head_dim)
    if head_size > MOST_HEAD_SIZE:
        raise PlanError(
            f"{source} has heads of size {head_size}; kernel attention takes {MOST_HEAD_SIZE} at"
            " most, beyond which its features leave the range of fp32."
        )
    if not 0 < settings.temperature <= MOST_TEMPERATURE:
        raise RequestError(
            f"--temperature {settings.temperature:g} must be above 0, at most {MOST_TEMPERATURE:g}."
        )
    if settings.features is not None and settings.features < 1:
        raise RequestError(f"--features {settings.features} must be at least 1.")
    values: Json = config.to_dict()
    left_out = {"model_type", "architectures", "layer_types"}
    return KernelLlamaConfig(
        **{key: value for key, value in values.items() if key not in left_out},
        num_features=settings.features or 4 * head_size,
        feature_seed=settings.seed,
        initial_temperature=settings.temperature,
    )
