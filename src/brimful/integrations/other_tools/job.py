"""A job of another tool as facts: what decides its memory and time, each with the key that says it.
Plain values; no torch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from brimful.base.types import Json, JsonDict, Texts
from brimful.hardware.groups import Group
from brimful.integrations.other_tools import division
from brimful.integrations.other_tools.command import LAUNCHED
from brimful.integrations.other_tools.settings import (
    Default,
    NotUnderstood,
    Settings,
    UnknownSetting,
    is_off,
    matches,
    shown,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.model import catalog
from brimful.planning.choices import has_experts
from brimful.planning.step import Lora

_NAMES_DATA = re.compile(r"data(set)?s?_(path|files?|dir|folder|name|split)$")
"""Keys of scripts of people's own that say with a text what is learnt from."""
_WHOLE_EXPERTS = (
    "its experts are tensors, as in transformers 5, which stay in 16 bits; as linear layers, in"
    " transformers 4, they were quantised"
)
Rows = Literal["padded", "packed", "joined"]


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn between steps, where a job is rewarded for them.

    Attributes:
        rows: Answers at once.
        tokens: Most tokens of a prompt with its answer.
        vllm_share: Share of the device's memory that vLLM reserves; 0: the trained model writes.
        sleeps: Whether vLLM gives it back while the model trains.
        shares_weights: Whether vLLM computes with the trained model's weights.
    """

    rows: int
    tokens: int
    vllm_share: float = 0.0
    sleeps: bool = False
    shares_weights: bool = False


@dataclass(frozen=True)
class TrainingJob:
    """What decides memory and time of a tool's training step.

    Attributes:
        model: Hub id, or a folder or config.json.
        weights: dtype of the weights while training; published: as the model was published.
        autocast: dtype of matrix products under autocast, "none" without.
        quantize: How the base's linear layers are stored, as in ForeignStep.
        upcast: Non-quantised weights that are fp32 on a 16-bit base: none, norms, those with
            embeddings and head (ends), or all.
        adapter: None trains every weight.
        sequence_length: Tokens of a row at most.
        rows: padded: each row one example, padded to the longest of its batch; packed: rows are
            full; joined: examples of a micro-batch in one row without padding.
        micro_batch: Rows of a forward and backward pass on a device.
        accumulation: Passes of an optimizer step.
        optimizer: Its variant, as in ForeignStep.
        clips: The gradient norm is clipped.
        recompute: Activation checkpointing of every block: none, reentrant or not.
        attention: sdpa, eager, flash2 (the flash-attn package) or expanded (keys and values are
            repeated before sdpa).
        loss: Chain from hidden states to the loss.
        kernels: Fused kernels and habits of the tool's loop.
        sampling: How answers are drawn between steps; None: none are.
        offloads: What checkpointed blocks keep lies in the host's memory.
        held: Terms of memory of which a device holds a part; None for all that there are.
    """

    model: str
    weights: Literal["fp32", "bf16", "fp16", "published"]
    autocast: Literal["none", "bf16", "fp16"]
    quantize: Literal["none", "nf4", "nf4_single", "int8"]
    upcast: Literal["none", "norms", "ends", "all"]
    adapter: Lora | None
    sequence_length: int
    rows: Rows
    micro_batch: int
    accumulation: int
    optimizer: str
    clips: bool
    recompute: Literal["none", "reentrant", "non_reentrant"]
    attention: Literal["sdpa", "eager", "flash2", "expanded"]
    loss: LossChain
    kernels: TrainerQuirks
    sampling: Sampling | None = None
    offloads: bool = False
    held: division.PartlyHeld | None = None


FACTS = tuple(each.name for each in fields(TrainingJob) if each.default is MISSING)
"""Those that every tool says."""
Facts = Mapping[str, Callable[[Settings], Any]]


@dataclass(frozen=True)
class Tool:
    """What brimful knows of a training tool.

    Attributes:
        title: Name as people write it.
        version: Version that the tables are of.
        source: Repository and commit.
        read: The day it was read.
        marks: Keys by which a file of this tool is known: no other tool has them.
        defaults: Keys that decide memory, time or the recipe, with the tool's defaults.
        facts: How each fact of a job follows from the keys.
        recipe: The same for what a recipe of brimful's needs beside them; see as_recipe.
        decides: Further keys that decide memory or time where they are switched on, and why brimful
            cannot plan with them.
        idle: Keys that decide neither.
        assumes: Keys that decide little, and what is planned in place of them.
        idle_prefixes: Beginnings of further ones.
        approximations: What the traced step does otherwise than the tool, in sentences.
        flat: Makes the keys of a file those of the tables.
        usual: What one of several devices holds where a file does not say it, and its name.
        upcasts: Versions of FSDP that make weights fp32 under autocast, as accelerate does.
    """

    title: str
    version: str
    source: str
    read: str
    marks: tuple[str, ...]
    defaults: Mapping[str, Default]
    facts: Facts
    recipe: Facts
    decides: Texts
    idle: frozenset[str]
    assumes: Texts = field(default_factory=dict)
    idle_prefixes: tuple[str, ...] = ()
    approximations: tuple[str, ...] = ()
    flat: Callable[[Json], Json] = dict
    usual: tuple[str, division.PartlyHeld] = ("DDP", division.DDP)
    upcasts: tuple[int, ...] = (1, 2)

    @property
    def keys(self) -> frozenset[str]:
        """All keys that the tables name."""
        return frozenset().union(self.defaults, self.decides, self.assumes, self.idle)


@dataclass(frozen=True)
class ReadJob:
    """A file of a tool, read.

    Attributes:
        tool: Tool whose file it is.
        values: The facts that are understood, by name.
        said_by: Keys that say a fact, by fact.
        unknown: Keys that decide memory or time and are not understood.
        idle: Keys of the file that decide neither.
        recipe: Further values for a recipe, with `recipe_said_by` as above.
        divided: What the file says of several devices.
        assumed: What was assumed where the file leaves something open: `key: value: what`.
    """

    tool: Tool
    values: Json
    said_by: Texts
    unknown: tuple[UnknownSetting, ...]
    idle: tuple[str, ...]
    recipe: Json = field(default_factory=dict)
    recipe_said_by: Texts = field(default_factory=dict)
    divided: division.Division = field(default_factory=division.Division)
    assumed: tuple[str, ...] = ()

    @property
    def job(self) -> TrainingJob | None:
        """Return the job; None where something that decides is not understood."""
        return None if self.unknown else TrainingJob(**self.values)


def read_job(tool: Tool, values: Json, *, native_bf16: bool = True) -> ReadJob:
    """Read the keys of a file by a tool's tables.

    Args:
        tool: Tool whose keys they are.
        values: The file's.
        native_bf16: Whether the device has bf16.
    """
    given = tool.flat(values)
    settings = Settings(given, tool.defaults, native_bf16=native_bf16)
    facts, said_by = _worked_out(tool.facts, settings)
    if "model" in facts:
        is_quantized = facts.get("quantize", "none") != "none"
        facts["model"] = _model_of(
            facts["model"], model_key(said_by), settings, is_quantized=is_quantized
        )
    divided = division.division_of(given)
    for key, value in given.items():
        if key in tool.defaults or is_off(value) or matches(key, tool.idle, tool.idle_prefixes):
            continue
        divides = key in division.KEYS and key in (*tool.decides, "config_file")
        if assumed := _assumed(tool, divided, key, value):
            settings.assume(key, assumed)
        elif divides and divided.held is not None:
            settings.assume(key, divided.reason)
            said_by["held"] = f"{key}: {shown(value)}"
            said_by |= _divide(facts, divided.held, divided, tool)
        else:
            reason = f"no key of {tool.title} {tool.version} that brimful knows"
            reason = divided.reason if divides else tool.decides.get(key, reason)
            settings.note_unknown(key, reason)
    if any(key in settings.assumed for key in division.COMPILES):
        facts["held"] = division.compiled(facts.get("held"))
        said_by.setdefault("held", "a compiled step")
    unknown = tuple(settings.unknown.values())
    recipe, recipe_said_by = _worked_out(tool.recipe, settings)
    idle = tuple(key for key in given if matches(key, tool.idle, tool.idle_prefixes))
    return ReadJob(
        tool,
        facts,
        said_by,
        unknown,
        idle,
        recipe,
        recipe_said_by,
        divided,
        tuple(settings.assumed.values()),
    )


def _divide(
    facts: JsonDict, held: division.PartlyHeld, divided: division.Division, tool: Tool
) -> Texts:
    """Write into `facts` what a device holds of a divided model, and whether blocks are recomputed.
    Return the text that names the setting behind the recomputation, if it is set here.
    """
    before = facts.get("held")
    upcasts = divided.upcasts in tool.upcasts and facts.get("autocast") != "none"
    facts["held"] = replace(
        held, perhaps=before.perhaps if before else (), has_masters=held.has_masters or upcasts
    )
    if not divided.recomputes or facts.get("recompute") != "none":
        return {}
    facts["recompute"] = "non_reentrant"
    return {"recompute": "activation_checkpointing of FSDP"}


def _assumed(tool: Tool, divided: division.Division, key: str, value: Any) -> str | None:
    """Return what is planned in place of a key that decides little; None for other keys."""
    compiles = dict.fromkeys(division.COMPILES, division.COMPILED)
    said = {**compiles, **tool.assumes, **LAUNCHED, **divided.counted}
    if key in tool.keys or not isinstance(value, str):
        return said.get(key)
    return said.get(key) or ("taken for a name of data" if _NAMES_DATA.search(key) else None)


def shared(read: ReadJob, group: Group) -> ReadJob:
    """Return a file's job as one of several devices runs it."""
    held = read.values.get("held")
    if group.count == 1:
        return read
    assumed = read.assumed
    if held is None or (held.expected == 1 and not held.parts):
        name, usual = read.tool.usual
        held = replace(usual, perhaps=() if held is None else held.perhaps)
        assumed = (*assumed, f"several devices: {name}, {division.PLANNED}")
    count = group.per_machine if read.divided.spread == "hybrid" else group.count
    return replace(
        read,
        values={**read.values, "held": replace(held, expected=1 / count, is_known=True)},
        said_by={"held": "several devices", **read.said_by},
        assumed=tuple(
            division.planned_for(each, group.count)
            for each in assumed
            if not each.endswith(division.COUNTED)
        ),
    )


def _model_of(name: str, key: str, settings: Settings, *, is_quantized: bool) -> str:
    """Return a model, or the one of the catalog that is called as a folder which is not here."""
    known = catalog.only_named(name) if name.count("/") > 1 and not Path(name).exists() else None
    said = []
    if known is not None:
        said.append(f"that folder is not here; {known} has its name and is planned")
    row = catalog.find(known or name)
    if row is not None and has_experts(row.config) and is_quantized:
        said.append(_WHOLE_EXPERTS)
    if said:
        settings.assume(key, "; ".join(said))
    return known or name


def model_key(said_by: Texts) -> str:
    """Return the key that names the model."""
    return said_by["model"].rsplit(", ")[-1].partition(":")[0]


def _worked_out(facts: Facts, settings: Settings) -> tuple[JsonDict, dict[str, str]]:
    """Return the values of facts that are understood, and what says them."""
    values, said_by = {}, {}
    for name, work_out in facts.items():
        try:
            values[name], said_by[name] = settings.watched(work_out)
        except NotUnderstood:
            continue  # the settings know which key and why
    return values, said_by
