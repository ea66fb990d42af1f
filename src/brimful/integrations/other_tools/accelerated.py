"""What accelerate's own file, or the options of `accelerate launch`, say of a job: as the keys with
which the tools' files say the same.

Read in accelerate 1.15.0, commands/launch.py and utils/{dataclasses,launch}.py, 2026-11-29.
"""

from brimful.base.types import Json, JsonDict

_USUAL_STAGE = 2


def keys_of(config: Json) -> JsonDict:
    """Return the keys `deepspeed` or `fsdp_config`, and `num_processes`, `mixed_precision` and
    `parallelism_config` where they are said; `distributed_type` or `zero_stage`, which no
    tool knows, where accelerate divides otherwise, or an option changes its file.

    Args:
        config: The file's keys, or options by name.
    """
    same = ("num_processes", "mixed_precision", "parallelism_config")
    keys = {key: config[key] for key in same if config.get(key)}
    kind = str(config.get("distributed_type") or "NO").upper()
    if kind == "DEEPSPEED" or config.get("use_deepspeed"):
        keys["deepspeed"] = _deepspeed({**(config.get("deepspeed_config") or {}), **config})
    elif kind == "FSDP" or config.get("use_fsdp"):
        options = {key: each for key, each in config.items() if key.startswith("fsdp_")}
        keys["fsdp_config"] = config.get("fsdp_config") or options or {"fsdp_version": 1}
    elif kind != "NO" and not kind.startswith("MULTI_"):
        keys["distributed_type"] = kind
    elif "zero_stage" in config:  # changes a file, of which the rest stays
        keys["zero_stage"] = config["zero_stage"]
    return keys


def _deepspeed(options: Json) -> str | JsonDict:
    """Return the path of DeepSpeed's own file, or its settings."""
    zero = {"stage": options.get("zero_stage", _USUAL_STAGE)}
    for part in ("optimizer", "param"):
        zero[f"offload_{part}"] = {"device": options.get(f"offload_{part}_device") or "none"}
    return options.get("deepspeed_config_file") or {"zero_optimization": zero}


def with_type(keys: Json) -> JsonDict:
    """Return keys in which accelerate's `mixed_precision` is the type that the job does not name
    itself.
    """
    chosen, rest = keys.get("mixed_precision"), dict(keys)
    rest.pop("mixed_precision", None)
    if chosen in ("bf16", "fp16") and not {"bf16", "fp16"} & rest.keys():
        rest[chosen] = True
    return rest
