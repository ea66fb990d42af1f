"""Adapters that another program or run trained (a folder in PEFT layout), as the start of a recipe:
`model=FOLDER` becomes the base model and an adapter section that goes on with them.

Only JSON is read: adapter_config.json, and the names of the tensors.
"""

import sys
from pathlib import Path
from typing import Any

from brimful.base.errors import RecipeError
from brimful.base.strict_json import load_json
from brimful.base.types import Json, JsonDict, Texts

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_HEADER_BYTES = 100_000_000
"""Size of the longest header that safetensors allows."""
AGREEING = ("rank", "alpha", "targets", "rslora", "dora")
"""Keys of the adapter section that the trained weights decide."""
KNOWN = frozenset(
    {"r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "use_dora"}
    | {"peft_type", "task_type", "base_model_name_or_path", "peft_version", "revision"}
    # How training began, or is run: nothing that trained weights compute depends on them.
    | {"init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config"}
    | {"inference_mode", "auto_mapping"}
    # Follow from the base, or mean something only beside a key that is refused.
    | {"fan_in_fan_out", "exclude_modules", "layers_pattern", "qalora_group_size", "megatron_core"}
)
"""Keys of a PEFT configuration that may have any value: the adapter section has them, or they
change nothing that is computed. Of every other key only a value that asks for nothing is taken.
"""
NEUTRAL: tuple[Any, ...] = (None, False, {}, [], "none")
"""Values that ask for nothing."""
REFUSED: Texts = {
    "bias": "trained biases",
    "lora_bias": "biases of the adapters",
    "modules_to_save": "whole layers trained beside the adapters",
    "rank_pattern": "ranks that differ by layer",
    "alpha_pattern": "scales that differ by layer",
    "layers_to_transform": "adapters on some layers only",
    "layer_replication": "repeated layers",
    "target_parameters": "adapters on parameters that are no linear layers",
    "trainable_token_indices": "single trained embeddings",
    "use_qalora": "QA-LoRA",
    "alora_invocation_tokens": "adapters that begin at certain tokens",
}
"""Words for what a key asks for; one that is not here is refused by its name alone."""
CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin adapters that also change the base, which is not in the folder."""


def is_adapter_folder(value: object) -> bool:
    """Return whether a recipe's model is a folder of adapters."""
    return isinstance(value, str) and (Path(value).expanduser() / CONFIG).is_file()


def base_and_section(folder: Path) -> tuple[str, JsonDict]:
    """Return the base model that adapters name, empty if none, and the section `adapter` that goes
    on with them.

    Raises:
        RecipeError: the folder cannot be read, or holds what brimful cannot go on with.
    """
    config = _config(folder)
    _refuse_other_kinds(folder, config)
    section = {
        "rank": config.get("r"),
        "alpha": _plain_number(config.get("lora_alpha")),
        "dropout": _plain_number(config.get("lora_dropout", 0.0)),
        "targets": _targets(folder, config.get("target_modules")),
        "rslora": bool(config.get("use_rslora", False)),
        "dora": bool(config.get("use_dora", False)),
        "start": str(folder.expanduser().resolve()),
    }
    return str(config.get("base_model_name_or_path") or ""), section


def go_on_with_adapters(values: JsonDict) -> list[str]:
    """Where `model` or `adapter.start` is a folder of adapters, put the base model and the settings
    of the adapters into a recipe's values; return what is wrong.

    A recipe that has all settings already is left as it is, so that a run can be read after the
    folder is gone. One that has a rank and no scale gets that of the adapters: twice the rank would
    change what they compute.
    """
    section = values.get("adapter") or {}
    if not isinstance(section, dict):
        return []
    is_named_as_model = is_adapter_folder(values.get("model"))
    start = values["model"] if is_named_as_model else section.get("start")
    has_settings = not is_named_as_model and "rank" in section
    lacks_scale = section.get("alpha") is None and is_adapter_folder(start)
    if not isinstance(start, str) or (has_settings and not lacks_scale):
        return []
    try:
        base, own = base_and_section(Path(start))
    except RecipeError as error:
        return [str(error)]
    if has_settings:
        values["adapter"] = section | {"alpha": own["alpha"]}
        return []
    problems = disagreements(section, own, start)
    if is_named_as_model:
        problems += _problems_of_base(base, start)
        values["model"] = base or values["model"]
    values["adapter"] = own | section | {"start": own["start"]}
    return problems


def disagreements(section: Json, own: Json, start: str) -> list[str]:
    """Return a line for each key in which an adapter section differs from trained adapters.

    Args:
        section: Adapter section as the recipe has it.
        own: The folder's own section, as `base_and_section` returns it.
        start: The folder, for the lines.
    """
    return [
        f"adapter.{key}: {section[key]}, but the adapters in {start} have {own[key]}; leave the key"
        " out to go on with them, or name another model for fresh adapters"
        for key in AGREEING
        if section.get(key) is not None and not _is_same(section[key], own[key])
    ]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, list):
        one = [name.strip() for name in one.split(",")]
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(str, one)) == sorted(map(str, other))
    return bool(one == other)


def _problems_of_base(base: str, start: str) -> list[str]:
    how = f"Name it: model=BASE adapter.start={start}"
    if not base:
        return [f"model: {CONFIG} in {start} names no base model. {how}"]
    is_path = base.startswith(("/", "./", "../", "~")) or base.count("/") > 1
    if is_path and not Path(base).expanduser().is_dir():
        return [f"model: the adapters in {start} were trained on {base}, which is not here. {how}"]
    return []


def _config(folder: Path) -> JsonDict:
    path = folder.expanduser() / CONFIG
    try:
        config = load_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"adapter.start: {path} cannot be read: {error}. Name a folder in PEFT layout, with"
            f" {CONFIG} and {WEIGHTS}."
        ) from error
    if not isinstance(config, dict):
        raise RecipeError(f"adapter.start: {path} must hold an object of settings.")
    if not (folder.expanduser() / WEIGHTS).is_file():
        raise RecipeError(
            f"adapter.start: {folder} has no {WEIGHTS}. Other formats, such as adapter_model.bin,"
            " can run code when they are opened; save the adapters again with save_pretrained."
        )
    return config


def _refuse_other_kinds(folder: Path, config: Json) -> None:
    found = []
    if config.get("peft_type") != "LORA":
        found.append(f"peft_type {config.get('peft_type')}")
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        found.append(f"task_type {config['task_type']}")
    if not isinstance(config.get("r"), int) or _plain_number(config.get("lora_alpha")) is None:
        found.append("no rank (r) and scale (lora_alpha) in numbers")
    begun = str(config.get("init_lora_weights", True)).lower()
    if begun.startswith(CHANGES_THE_BASE):
        found.append(f"init_lora_weights {begun}, which also changed the base")
    found += [
        f"{REFUSED.get(key, 'a setting that brimful does not know')} ({key})"
        for key, value in config.items()
        if key not in KNOWN and value not in NEUTRAL
    ]
    if found:
        raise RecipeError(
            f"model: the adapters in {folder} cannot be trained further: they have"
            f" {', '.join(found)}. brimful trains LoRA adapters of one rank and scale for a causal"
            " language model (also rsLoRA and DoRA). Merge them into their base (PEFT's"
            " merge_and_unload) and name the merged model."
        )


def _plain_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= sys.float_info.max else None


def _targets(folder: Path, named: Any) -> list[str]:
    """Return the names of the adapted layers; where the configuration has a pattern, those that the
    tensors name.
    """
    if isinstance(named, list) and all(isinstance(name, str) for name in named):
        return sorted(named)
    path = folder.expanduser() / WEIGHTS
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = load_json(file.read(min(length, MOST_HEADER_BYTES)))
        layers = {
            name.split(".lora_A")[0].rsplit(".", 1)[-1] for name in header if ".lora_A" in name
        }
    except (OSError, ValueError, TypeError) as error:
        raise RecipeError(f"adapter.start: {path} cannot be read: {error}.") from error
    if not layers:
        raise RecipeError(f"adapter.start: {path} holds no LoRA adapters.")
    return sorted(layers)
