"""How several devices share a job, as plans choose it, beside every other way under the same rates.

    python benchmarks/spread_choice.py [--cases 300] [--minutes 60] [--seed 0]

A case is a model, a method, a device of the catalog, a number of them and an effective batch, drawn
at random. The other ways: the whole model on each device or in parts, with and without
recomputation, and every micro-batch that fits by the plan's own margin. The figure is the step time
of the chosen way over that of the quickest, among ways whose passes are of equal size and among
all: a plan takes unequal ones only where they save 5 % or more. Cases in which nothing surely fits
are counted and left out; others are drawn until there are as many as asked for.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from brimful.chains.devices import facts_of
from brimful.hardware import catalog
from brimful.hardware.groups import MOST_PER_MACHINE, Group
from brimful.planning.derive import Derived, Facts
from brimful.planning.search import highest_useful
from brimful.planning.specs import model_facts
from brimful.planning.spread import derive_spread
from brimful.planning.survey import Tracer
from brimful.recipe import Recipe, load
from brimful.rehearsal.kept_traces import kept_traces
from record import write_record

JOBS = (
    ("HuggingFaceTB/SmolLM2-135M", "full", 1024),
    ("meta-llama/Llama-3.2-1B", "full", 1024),
    ("meta-llama/Llama-3.2-3B", "lora", 2048),
    ("meta-llama/Llama-3.1-8B", "full", 2048),
    ("meta-llama/Llama-3.1-8B", "lora", 1024),
    ("meta-llama/Llama-3.1-70B", "lora", 1024),
)
"""Model, method and sequence length: each is recorded in parts, for half a minute, and kept."""
BATCHES = (16, 24, 32, 64, 100, 128)
GROUPS = ((2, 1), (4, 1), (8, 1), (8, 2))
"""Devices of a machine, and machines."""
WANTED = 1.03
METHODS = {"full": ["adapter=null"], "lora": ["adapter.rank=16"]}


def recipe_of(model: str, method: str, length: int, batch: int, *choices: str) -> Recipe:
    changes = [f"model={model}", f"sequence_length={length}", f"batch.sequences={batch}"]
    fixed = ["training.steps=1000", "data.path=none.jsonl", "plan.compile=false"]
    return load("lora", [*changes, *METHODS[method], *fixed, *choices])


def seconds(derived: Derived) -> float:
    return derived.plan.predicted["step_time_s"].value


def other_ways(
    job: tuple[Any, ...], group: Group, traces: Tracer, facts: Facts
) -> Iterator[tuple[float, bool]]:
    """Yield the step time of every way that fits, and whether its passes are of equal size."""
    for spread in ("replicated", "sharded"):
        for recompute in ("false", "true"):
            ways = f"plan.spread={spread}", f"plan.recompute={recompute}"
            best = derive_spread(recipe_of(*job, *ways), group, traces, facts)
            highest = highest_useful(best.prepared)
            largest = best.memory.largest(highest) if best.footprint.verdict == "fits" else 0
            for micro_batch in range(1, largest + 1):
                fixed = recipe_of(*job, *ways, f"plan.micro_batch={micro_batch}")
                derived = derive_spread(fixed, group, traces, facts)
                if derived.footprint.verdict != "fits":
                    continue  # with one micro-batch more, gradients are added up
                yield seconds(derived), len(set(derived.plan.micro_batches)) == 1


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cases", type=int, default=300)
    arguments.add_argument("--minutes", type=float, default=60, help="then no case is begun")
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    draw = random.Random(asked.seed)
    devices = [each for name in catalog.names() if (each := catalog.get(name)).kind == "cuda"]
    rows: list[dict[str, Any]] = []
    ends_s = time.monotonic() + 60 * asked.minutes
    with kept_traces() as traces:
        while sum("over" in row for row in rows) < asked.cases and time.monotonic() < ends_s:
            job = (*draw.choice(JOBS), draw.choice(BATCHES))
            device, (per_machine, machines) = draw.choice(devices), draw.choice(GROUPS)
            group = Group(device, min(per_machine, MOST_PER_MACHINE), machines)
            recipe = recipe_of(*job)
            facts = facts_of(device, model=model_facts(recipe))
            if facts.rates is None:
                continue
            chosen = derive_spread(recipe, group, traces, facts)
            row: dict[str, Any] = {"job": job, "devices": group.name}
            if chosen.footprint.verdict == "fits":
                ways = list(other_ways(job, group, traces, facts))
                all_s = min(step_s for step_s, _ in ways)
                equal_s = min(step_s for step_s, is_equal in ways if is_equal)
                plan = chosen.plan
                row["spread"], row["micro_batches"] = plan.spread, plan.micro_batches
                row["recompute"], row["ways"] = plan.recompute, len(ways)
                row["over"] = seconds(chosen) / equal_s
                row["over_all"] = seconds(chosen) / all_s
            rows.append(row)
            print(json.dumps(row), flush=True)
    planned = [row for row in rows if "over" in row]
    summary: dict[str, Any] = {
        "cases": len(rows),
        "planned": len(planned),
        "in_parts": sum(row["spread"] == "sharded" for row in planned),
    }
    for name in ("over", "over_all"):
        shares = sorted(row[name] for row in planned)
        summary[name] = {
            "within_3_percent": sum(share <= WANTED for share in shares) / len(shares),
            "median": statistics.median(shares),
            "worst": shares[-1],
        }
    print(json.dumps(summary))
    print(write_record("spread_choice", {"seed": asked.seed, "summary": summary, "cases": rows}))
    return int(summary["over"]["worst"] > WANTED)


if __name__ == "__main__":
    sys.exit(main())
