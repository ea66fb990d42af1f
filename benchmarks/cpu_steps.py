"""Steps that are measured on a CPU, as `cpu_steps.yaml` has them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
import yaml

from brimful.planning.step import Lora, StepSpec, canonical


@dataclass(frozen=True)
class MeasuredStep:
    """A step with micro-batches of so many sequences."""

    spec: StepSpec
    micro_batch: int


def steps_of(group: str, **common: Any) -> dict[str, MeasuredStep]:
    """Return the steps of a group by name, with what they share."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    made = {}
    for name, case in table[group].items():
        values = {"cuda": False} | common | case
        model, micro_batch = dict(table["models"][values.pop("model")]), values.pop("micro_batch")
        config = getattr(transformers, model.pop("class"))(**model)
        if "adapter" in values:
            values["adapter"] = Lora(**values["adapter"])
        options = json.dumps(values.pop("options", {}), sort_keys=True)
        spec = StepSpec(canonical(config.to_dict()), options_json=options, **values)
        made[name] = MeasuredStep(spec, micro_batch)
    return made
