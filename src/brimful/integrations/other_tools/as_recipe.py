"""The recipe of brimful's own that trains what another tool's file describes."""

import re
from pathlib import Path
from typing import Any

from brimful.base.dotted import format_yaml
from brimful.base.errors import RequestError
from brimful.base.types import JsonDict, Texts
from brimful.integrations.other_tools.job import ReadJob, TrainingJob
from brimful.integrations.other_tools.optimizers import IN_TORCH, OTHERS, OWN
from brimful.integrations.other_tools.planned import look_up, with_peft_targets
from brimful.integrations.other_tools.preferences import ANSWERS, METHODS
from brimful.integrations.other_tools.tools.trl import PEFT_LINEAR, USUAL_TARGETS
from brimful.planning.step import Lora
from brimful.recipe import load_text

OPTIMIZERS: Texts = {"8bit": "adamw_8bit", "paged_8bit": "paged_adamw_8bit", "muon": "muon"}
"""brimful's name of variants that are kinds of their own; the others are adamw."""
SCHEDULES = ("cosine", "linear", "constant")
NO_DATA = "pairs.jsonl"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def recipe_text(path: Path, read: ReadJob) -> str:
    """Return a recipe as YAML with comments on what differs; `load` reads it.

    Args:
        path: The tool's file, named in the comments.
        read: What it says.

    Raises:
        RequestError: something that decides is not understood.
        RecipeError: the values make no recipe.
    """
    job = read.job
    if job is None or (job.held and job.held.expected < 1 and read.divided.spread is None):
        listed = "; ".join(each.describe() for each in read.unknown) or "; ".join(read.assumed)
        raise RequestError(f"{path} cannot be written as a recipe: {listed}.")
    values = _values(path, read, job)
    lines = [
        f"# What {path.name} describes for {read.tool.title} {read.tool.version}, as a recipe of"
        " brimful's."
    ]
    for key, value in values.items():
        lines += [f"# {comment}" for comment in _comments(key, read, job)]
        lines.append(format_yaml({key: value}).rstrip())
    text = "\n".join(lines) + "\n"
    load_text(text, f"the recipe for {path.name}")
    return text


def _values(path: Path, read: ReadJob, job: TrainingJob) -> JsonDict:
    said = read.recipe
    learns = said.get("learns", "examples")
    if learns == "scores":
        raise RequestError(
            f"{path} cannot be written as a recipe: no recipe trains a reward model."
        )
    if learns not in METHODS:
        raise RequestError(
            f"{path} cannot be written as a recipe: its rewards are functions of a program. The"
            " recipe unit-grpo shows one; rewards.verifiers names yours (docs/verifiers.md)."
        )
    rows = ANSWERS if learns == "pairs" else 1
    values: JsonDict = {
        "name": re.sub(r"\W+", "-", path.stem).strip("-") or "job",
        "method": METHODS[learns],
        "model": job.model,
    }
    if job.quantize != "none":
        values["quantize"] = "nf4"
    if job.adapter is not None:
        values["adapter"] = _adapter(read, job)
    values |= {
        "sequence_length": job.sequence_length,
        "batch": {"sequences": job.micro_batch * job.accumulation // rows},
        "training": (
            {"steps": said["steps"]} if said.get("steps") else {"epochs": said.get("epochs", 1.0)}
        ),
        "data": _data(read),
        "optimizer": _optimizer(read, job),
    }
    if learns != "examples":
        if "preference" not in said:
            raise RequestError(
                f"{path} cannot be written as a recipe: its loss of preferences is none of those"
                " that preference.loss has (`brimful recipes keys`)."
            )
        values["preference"] = dict(said["preference"])
    if isinstance(said.get("seed"), int):
        values["seed"] = said["seed"]
    if read.divided.spread is not None:
        values["plan"] = {"spread": read.divided.spread}
    return values


def _adapter(read: ReadJob, job: TrainingJob) -> JsonDict:
    adapter = job.adapter or Lora(16)
    if adapter.targets in (USUAL_TARGETS, PEFT_LINEAR):
        adapter = with_peft_targets(adapter, look_up(job.model))
    targets: Any = adapter.targets
    values = {
        "rank": adapter.rank,
        "alpha": read.recipe.get("alpha"),
        "dropout": adapter.dropout,
        "targets": targets if targets == "all-linear" else targets.split(","),
        "rslora": read.recipe.get("rslora", False),
        "dora": adapter.dora,
    }
    return {key: value for key, value in values.items() if value}


def _data(read: ReadJob) -> JsonDict:
    path = read.recipe.get("dataset")
    known = path and all(
        isinstance(each, str) and (_HUB_ID.fullmatch(each) or Path(each).suffix)
        for each in (path if isinstance(path, list) else [path])
    )
    split = str(read.recipe.get("split") or "train").partition("[")[0]
    is_all = read.recipe.get("loss_on_all") and not read.recipe.get("preference")
    return {
        "path": path if known else NO_DATA,
        **({"splits": {"train": split}} if known and split != "train" else {}),
        "loss_on": "all" if is_all else "completion",
        "long_documents": "truncate",
    }


def _optimizer(read: ReadJob, job: TrainingJob) -> JsonDict:
    said = read.recipe
    schedule = said.get("schedule", "linear")
    return {
        "kind": OPTIMIZERS.get(OWN.get(job.optimizer, job.optimizer), "adamw"),
        "learning_rate": said.get("learning_rate", 2e-5),
        "min_learning_rate": 0.0,
        "schedule": schedule if schedule in SCHEDULES else "cosine",
        "warmup": said.get("warmup", 0.0),
        "beta2": said.get("beta2", 0.999),
        "weight_decay": said.get("weight_decay", 0.0),
        "clip_norm": 1.0 if job.clips else None,
    }


def _comments(key: str, read: ReadJob, job: TrainingJob) -> list[str]:
    title, said = read.tool.title, read.recipe
    made = {
        "model": [_on_precision(title, job)],
        "quantize": [
            {
                "nf4_single": f"{title} quantises without double quantisation.",
                "int8": f"{title} quantises to 8 bits.",
            }.get(job.quantize, "")
        ],
        "adapter": [
            f"{title} trains copies of {job.adapter.saved} beside the adapters."
            if job.adapter is not None and job.adapter.saved
            else ""
        ],
        "sequence_length": [_on_rows(title, job)],
        "batch": [
            f"{title}: {job.micro_batch} x {job.accumulation} on each device; here the plan"
            " chooses how a step is divided.",
            "With several devices, multiply by their number."
            if read.divided.spread is not None
            else "",
        ],
        "data": [_on_data(read)],
        "optimizer": [
            f"{title} has the optimizer {job.optimizer}; here it is AdamW."
            if job.optimizer in (*OTHERS, *IN_TORCH)
            else "",
            ""
            if said.get("schedule") in SCHEDULES
            else f"{title} has the schedule {said.get('schedule')}; the closest is taken.",
            f"{title} keeps its states in memory that the driver moves; here they stay on the"
            " device."
            if job.optimizer == "paged_32bit"
            else "",
            ""
            if "learning_rate" in said
            else "The file names no learning rate; this one is usual.",
        ],
    }
    return [comment for comment in made.get(key, []) if comment]


def _on_precision(title: str, job: TrainingJob) -> str:
    here = "16 bits" if job.adapter is not None else "fp32 under 16-bit autocast"
    there = (
        job.weights if job.autocast == "none" else f"{job.weights} under {job.autocast} autocast"
    )
    return f"{title} holds the base's weights in {there}; brimful in {here}, as the device has it."


def _on_rows(title: str, job: TrainingJob) -> str:
    if job.rows == "padded":
        return ""
    return f"{title} packs examples into rows of this length; here the plan chooses that."


def _on_data(read: ReadJob) -> str:
    path = _data(read)["path"]
    named = read.recipe.get("dataset")
    if path == NO_DATA:
        what = f"data ({named}) are no hub id or file" if named else "file names no data"
        return f"The {what}: put your own in place of {NO_DATA}."
    split, bracket, part = str(read.recipe.get("split")).partition("[")
    if bracket:
        return f"The file trains on {bracket}{part} of split {split}; here it is all of it."
    if str(path).endswith(".txt"):
        return "The file trains on plain text; method sft needs rows with a prompt and an answer."
    return (
        f"Columns and format are guessed from the first rows; {read.tool.title}'s own template for"
        " prompts is not taken over."
    )
