"""How DeepSpeed and FSDP divide a job among devices, and which spread of a recipe is the same.

Read in transformers 5.23.0 (training_args.py: words of `fsdp`, keys of `fsdp_config`), accelerate
1.14 (utils/constants.py: numbers of the strategies) and DeepSpeed's documentation of
`zero_optimization`, 2026-11-25.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from brimful.other_trainers.settings import is_off

KEYS = ("deepspeed", "fsdp", "fsdp_config", "fsdp_version")
Spread = Literal["replicated", "sharded", "hybrid"]

STRATEGIES: Mapping[str, Spread | None] = {
    "full_shard": "sharded",
    "hybrid_shard": "hybrid",
    "no_shard": "replicated",
    "shard_grad_op": None,
    "hybrid_shard_zero2": None,
}
"""By FSDP's name; None: brimful has no such spread."""
NUMBERED = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""accelerate's numbers of them, from 1 on."""
STAGES: Mapping[Any, Spread | None] = {0: "replicated", 1: None, 2: None, 3: "sharded"}
"""By DeepSpeed's stage."""

_OFFLOADED = (
    "moves weights or optimizer states to the host, which brimful can neither plan nor train"
)
_WHOLE_WEIGHTS = (
    "keeps whole weights on each device and divides the rest, which brimful can neither plan nor"
    " train"
)
_AS_RECIPE = (
    "the tool's own step on several devices is not traced; --as-recipe writes a recipe with"
    " plan.spread={spread}, which is planned for them. Without this key the plan is of one device"
    " that holds all"
)


@dataclass(frozen=True)
class Division:
    """What a file says of several devices.

    Attributes:
        spread: The same in a recipe of brimful's; None where it has none, or nothing is said.
        reason: Why the tool's own step is not planned; empty where nothing is said.
    """

    spread: Spread | None = None
    reason: str = ""


def division_of(given: Mapping[str, Any]) -> Division:
    """Return how the keys of a file divide the model among devices. `deepspeed` holds its settings,
    or the path of a file that was not found.
    """
    if not is_off(given.get("deepspeed")):
        return _of_deepspeed(given["deepspeed"])
    if any(not is_off(given.get(key)) for key in KEYS):
        return _of_fsdp(given.get("fsdp"), given.get("fsdp_config"))
    return Division()


def _of_deepspeed(value: Any) -> Division:
    if not isinstance(value, dict):
        return Division(None, "its stage is in a file that was not found from here")
    zero = value.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    for part in ("offload_optimizer", "offload_param"):
        device = (zero.get(part) or {}).get("device", "none")
        if device != "none":
            return Division(None, f"{part} {_OFFLOADED}")
    if zero.get("zero_hpz_partition_size", 1) != 1 or zero.get("mics_shard_size", 0) > 0:
        return Division(None, "a second way of dividing weights is not understood")
    if stage not in STAGES:
        return Division(None, f"ZeRO stage {stage} is not understood")
    return _division(f"ZeRO-{stage}", STAGES[stage])


def _of_fsdp(value: Any, config: Any) -> Division:
    """Return how a job divides its model by its keys `fsdp`, a text or list of words, and
    `fsdp_config`, a mapping.
    """
    options = config if isinstance(config, dict) else {}
    options = {str(key).removeprefix("fsdp_"): each for key, each in options.items()}
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    words = {str(word).lower() for word in words} if isinstance(words, list) else set()
    if "offload" in words or any(options.get(key) for key in ("offload_params", "cpu_offload")):
        return Division(None, f"offloading {_OFFLOADED}")
    strategy = _strategy(words, options)
    if strategy not in STRATEGIES:
        return Division(None, f"FSDP's strategy {strategy} is not understood")
    return _division(f"FSDP's {strategy}", STRATEGIES[strategy])


def _strategy(words: set[str], options: Mapping[str, Any]) -> str:
    """FSDP's name of the strategy; full_shard is the default of both versions."""
    named = options.get("sharding_strategy", options.get("reshard_after_forward"))
    if named is False:  # version 2 says it so
        return "shard_grad_op"
    if isinstance(named, int) and not isinstance(named, bool) and 0 < named <= len(NUMBERED):
        return NUMBERED[named - 1]
    if isinstance(named, str):
        return {"true": "full_shard", "false": "shard_grad_op"}.get(named.lower(), named.lower())
    return next((each for each in STRATEGIES if each in words), "full_shard")


def _division(name: str, spread: Spread | None) -> Division:
    if spread is None:
        return Division(None, f"{name} {_WHOLE_WEIGHTS}")
    return Division(spread, f"{name}: {_AS_RECIPE.format(spread=spread)}")
