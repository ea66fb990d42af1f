"""How DeepSpeed and FSDP divide a job among devices, what one of them holds, and which spread of a
recipe is the same.

Read in transformers 5.23.0 (training_args.py: words of `fsdp`, keys of `fsdp_config`), accelerate
1.14 (utils/constants.py: numbers of the strategies) and DeepSpeed's documentation and sources of
`zero_optimization` (runtime/zero/{stage_1_and_2,stage3,config}.py: buckets and their defaults),
2026-11-25.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from brimful.base.types import Json, JsonDict, Texts
from brimful.integrations.other_tools.settings import is_off

KEYS = ("deepspeed", "fsdp", "fsdp_config", "fsdp_version", "config_file")
COUNTS = ("num_processes", "nproc_per_node", "num_gpus", "dp_shard_size")
"""Keys that say how many devices share a job, of all machines but for nproc_per_node."""
COUNTED = "how many devices share what is divided"
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

DEVICES = 8
"""Devices expected to share a job where nothing says how many there are."""
WEIGHTS, STATES = ("weights", "adapters"), ("optimizer states",)
REST = ("gradients", *STATES)
PARTS: Mapping[str, tuple[str, ...]] = {
    "ZeRO-0": (),
    "ZeRO-1": STATES,
    "ZeRO-2": REST,
    "ZeRO-3": (*WEIGHTS, *REST),
    "FSDP's full_shard": (*WEIGHTS, *REST),
    "FSDP's hybrid_shard": (*WEIGHTS, *REST),
    "FSDP's shard_grad_op": REST,
    "FSDP's hybrid_shard_zero2": REST,
    "FSDP's no_shard": (),
}
"""What is divided among the devices, by how a strategy is named."""
BUCKET, MAX_LIVE = 5 * 10**8, 10**9
"""DeepSpeed's defaults: elements of a bucket of gradients (twice where communication overlaps), and
gathered elements of ZeRO-3.
"""
GATHERED = 1 / 3
"""Largest share of a model's weights that FSDP gathers at once: embedding, head and two blocks,
34 % of Qwen2.5-0.5B and 5 % of Llama 70B.
"""
_ON_HOST = {"device": "cpu"}
_NAMED_STAGE = re.compile(r"(?:zero|z|stage)[-_]?([0-3])(?!\d)", re.IGNORECASE)
"""What a file of DeepSpeed's settings is usually called, such as those that come with LLaMA-Factory
(ds_z3_offload_config.json) and Axolotl (zero3_bf16_cpuoffload_params.json).
"""
_OFFLOADED = "moves weights or optimizer states to the host, which no recipe does"
_WHOLE_WEIGHTS = "keeps whole weights on each device and divides the rest, which no recipe does"
_AS_RECIPE = "--as-recipe writes a recipe with plan.spread={spread} for your devices"
PLANNED = (
    f"planned for one of {DEVICES} devices that share it, from one of very many (low) to the only"
    " one (high)"
)


@dataclass(frozen=True)
class PartlyHeld:
    """Terms of memory of which a device holds an unknown part.

    Attributes:
        parts: Names of the terms.
        expected: The part that is expected.
        on_host: Terms in the host's memory.
        buffer_bytes: Most bytes of communication buffers and gathered weights; None: FSDP's.
        has_masters: 16-bit weights that train have fp32 copies and states beside them (DeepSpeed),
            or, as large, are fp32 with their gradients and states (accelerate's FSDP).
        gathered: Largest share of the weights that FSDP gathers at once.
        perhaps: Memory terms that may be there in part, whole, or not at all.
        is_known: The expected part is certain.
        copies_gradients: Gradients stand a second time in buckets (DDP).
    """

    parts: tuple[str, ...]
    expected: float = 1 / DEVICES
    on_host: tuple[str, ...] = ()
    buffer_bytes: int | None = 0
    has_masters: bool = False
    gathered: float = GATHERED
    perhaps: tuple[str, ...] = ()
    is_known: bool = False
    copies_gradients: bool = False

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys((*self.parts, *self.on_host, *self.perhaps))) or "nothing"

    @property
    def hides_time(self) -> bool:
        """Whether the time of a step cannot be told from a device that holds all."""
        return self.expected < 1 or "activations" in self.perhaps

    def buffers(self, weights_bytes: int) -> int:
        """Return the peak bytes of communication buffers and gathered weights.

        Args:
            weights_bytes: Bytes of the whole model's weights.
        """
        if self.buffer_bytes is None:
            return round(self.gathered * weights_bytes)
        is_gathered = "weights" in (*self.parts, *self.on_host)
        return min(self.buffer_bytes, weights_bytes) if is_gathered else self.buffer_bytes


DDP = PartlyHeld((), copies_gradients=True)
"""What one of several devices holds where a file divides nothing: accelerate wraps with DDP."""
COMPILES = ("torch_compile", "compile")
"""Keys that compile the step."""
COMPILED = (
    "planned as it is without; a compiled step keeps less: from none (low) to all (high) of the"
    " activations, temporaries and logits"
)


def compiled(held: PartlyHeld | None) -> PartlyHeld:
    """Return what a device holds of a step that is compiled."""
    terms = ("activations", "temporaries", "loss and logits")
    held = held or PartlyHeld((), expected=1)
    return replace(held, perhaps=(*held.perhaps, *terms))


@dataclass(frozen=True)
class Division:
    """What a file says of several devices.

    Attributes:
        spread: The same in a recipe of brimful's; None where it has none, or nothing is said.
        reason: What is planned, or why nothing is; empty where nothing is said.
        held: What a device holds; None where that is not understood, or nothing is said.
        recomputes: FSDP recomputes every block, whatever the tool's own key says.
        upcasts: accelerate's FSDP makes weights fp32 that are cast under autocast; its version.
        counted: The key that says how many devices there are, and that it does.
    """

    spread: Spread | None = None
    reason: str = ""
    held: PartlyHeld | None = None
    recomputes: bool = False
    upcasts: int = 0
    counted: Texts = field(default_factory=dict)


def division_of(given: Json) -> Division:
    """Return how the keys of a file divide the model among devices. `deepspeed` holds its settings,
    or the path of a file that was not found, as `config_file` is of accelerate's.
    """
    for key in ("deepspeed", "config_file"):
        if not is_off(given.get(key)):
            return _counted(_of_deepspeed(given[key]), given)
    if any(not is_off(given.get(key)) for key in KEYS):
        found = _of_fsdp(given.get("fsdp"), given.get("fsdp_config"))
        if str(given.get("fsdp_version")) == "2":
            found = replace(found, upcasts=2)
        return _counted(found, given)
    return Division()


def planned_for(text: str, count: int) -> str:
    """Return a text in which a known number of devices shares the job."""
    before = f"{re.escape(PLANNED)}|planned for each of \\d+ devices"
    return re.sub(before, f"planned for each of {count} devices", text)


def _counted(found: Division, given: Json) -> Division:
    """Return a division among as many devices as the keys say, if they do."""
    key = next((each for each in COUNTS if not is_off(given.get(each))), "")
    numbers = (given.get(key), given.get("nnodes", 1) if key == "nproc_per_node" else 1)
    is_known = all(type(each) is int and each > 0 for each in numbers)
    if found.held is None or found.spread == "hybrid" or not is_known:
        return found
    count = math.prod(numbers)  # type: ignore[arg-type]
    return replace(
        found,
        reason=planned_for(found.reason, count),
        held=replace(found.held, expected=1 / count, is_known=True),
        counted=dict.fromkeys((key, "nnodes"), COUNTED),
    )


def _of_deepspeed(value: Any) -> Division:
    name = PurePosixPath(str(value)).name
    if isinstance(value, dict):
        zero, by_name = value.get("zero_optimization") or {}, ""
    elif found := _NAMED_STAGE.search(name):
        zero, by_name = _named(name, int(found[1])), f"by the name of {name}, "
    else:
        return Division(None, "its stage is in a file that was not found from here")
    stage = zero.get("stage", 0)
    if zero.get("zero_hpz_partition_size", 1) != 1 or zero.get("mics_shard_size", 0) > 0:
        return Division(None, "a second way of dividing weights is not understood")
    if stage not in STAGES:
        return Division(None, f"ZeRO stage {stage} is not understood")
    on_host = tuple(
        term
        for part, terms in (("offload_optimizer", STATES), ("offload_param", WEIGHTS))
        if (zero.get(part) or {}).get("device", "none") != "none"
        for term in terms
    )
    strategy = f"ZeRO-{stage}"
    buffers = _buffers_of_deepspeed(stage, zero)
    held = PartlyHeld(PARTS[strategy], 1 / DEVICES, on_host, buffers, has_masters=True)
    return _division(by_name + strategy, STAGES[stage], held)


def _named(name: str, stage: int) -> Json:
    """Return the `zero_optimization` that a file's name stands for. LLaMA-Factory's files do not
    overlap communication.
    """
    zero: JsonDict = {"stage": stage, "overlap_comm": not name.startswith("ds_")}
    name = re.sub(r"no[-_]?(?:cpu[-_]?)?offload", "", name)
    if "offload" in name and (stage == 3 or "params" in name):
        zero["offload_param"] = _ON_HOST
    if "offload" in name and "params" not in name:
        zero["offload_optimizer"] = _ON_HOST
    return zero


def _buffers_of_deepspeed(stage: int, zero: Json) -> int:
    """Return the bytes that communication takes, in 16 bits: buckets of gradients, or, in stage 3,
    the weights gathered at once.
    """
    key, usual = ("stage3_max_live_parameters", MAX_LIVE)
    if stage < 3:
        key, usual = "reduce_bucket_size", BUCKET
    said = zero.get(key)
    elements = usual if isinstance(said, bool | str | None) else int(said)
    return 2 * elements * bool(stage) * (1 + bool(stage < 3 and zero.get("overlap_comm")))


def _of_fsdp(value: Any, config: Any) -> Division:
    """Return how a job divides its model by its keys `fsdp`, a text or list of words, and
    `fsdp_config`, a mapping.
    """
    options = config if isinstance(config, dict) else {}
    options = {str(key).removeprefix("fsdp_"): each for key, each in options.items()}
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    words = {str(word).lower() for word in words} if isinstance(words, list) else set()
    offloads = any(options.get(key) for key in ("offload_params", "cpu_offload"))
    strategy = _strategy(words, options)
    if strategy not in STRATEGIES:
        return Division(None, f"FSDP's strategy {strategy} is not understood")
    name, recomputes = f"FSDP's {strategy}", bool(options.get("activation_checkpointing"))
    on_host = (*WEIGHTS, *REST) if offloads or "offload" in words else ()
    gathers = None if "weights" in (*PARTS[name], *on_host) else 0
    held = PartlyHeld(PARTS[name], on_host=on_host, buffer_bytes=gathers)
    version = 2 if str(options.get("version")) == "2" else 1
    found = _division(name, STRATEGIES[strategy], held)
    return replace(found, recomputes=recomputes, upcasts=version)


def _strategy(words: set[str], options: Json) -> str:
    """FSDP's name of the strategy; full_shard is the default of both versions."""
    named = options.get("sharding_strategy", options.get("reshard_after_forward"))
    if named is False:  # version 2 says it so
        return "shard_grad_op"
    if isinstance(named, int) and not isinstance(named, bool) and 0 < named <= len(NUMBERED):
        return NUMBERED[named - 1]
    if isinstance(named, str):
        return {"true": "full_shard", "false": "shard_grad_op"}.get(named.lower(), named.lower())
    return next((each for each in STRATEGIES if each in words), "full_shard")


def _division(name: str, spread: Spread | None, held: PartlyHeld) -> Division:
    if held.on_host:
        return Division(None, f"{name}, {PLANNED}; it {_OFFLOADED}", held)
    if spread is None:
        return Division(None, f"{name}, {PLANNED}; it {_WHOLE_WEIGHTS}", held)
    return Division(spread, f"{name}, {PLANNED}; {_AS_RECIPE.format(spread=spread)}", held)
