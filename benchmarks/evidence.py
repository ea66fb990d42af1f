"""What runs measured beside what was predicted, from files that people sent.

    python benchmarks/evidence.py FILE... [--no-record]

`brimful evidence export FILE` writes such a file. Two predictions are compared with what was
measured: the one that the plan showed when the run began, and the one that today's code makes of the
same settings, without corrections by earlier runs ("again"). The latter is made of runs whose rows
have one length, of fresh models and models of the catalog, for memory only: the files do not hold
the lengths of rows, and times on a processor rest on passes that were timed there. Errors are
predicted over measured minus one. A device's runs of equal settings and equal brimful count once,
with their medians, so that nobody's repetitions weigh more than another's runs.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from brimful.base.errors import BrimfulError
from brimful.hardware import catalog
from brimful.hardware.device import Device, abilities_of
from brimful.hardware.evidence import Evidence, read
from brimful.hardware.residuals import PEAK
from brimful.planning.derive import Facts, derive_with_memory
from brimful.planning.target import HOST_GROWTH_BYTES
from brimful.recipe import PlanChoices, Recipe
from brimful.rehearsal.kept_traces import kept_traces
from record import write_record

NAMES = {
    "peak_memory_bytes": "peak memory",
    "allocated_memory_bytes": "allocated memory",
    "step_time_s": "step time",
    "evaluation_time_s": "evaluations",
    "checkpoint_time_s": "checkpoints",
    "start_time_s": "start",
}
UPDATES = get_args(PlanChoices.model_fields["optimizer"].annotation)


@dataclass(frozen=True)
class Compared:
    """A prediction and what was measured; `inside`: whether the shown interval holds it."""

    device: str
    name: str
    kind: str
    error: float
    inside: bool | None


def settings_of(run: Evidence) -> tuple[str, ...]:
    """Return what makes two runs repetitions of each other."""
    return (run.device, run.versions.get("brimful", ""), repr(sorted(run.settings.items())))


def shown(runs: Sequence[Evidence]) -> list[Compared]:
    """Compare predictions as they were shown with the medians of runs of equal settings."""
    found = []
    for same in _repeated(runs):
        first = same[0]
        for name in first.measured.keys() & first.shown.keys():
            measured = statistics.median(run.measured[name] for run in same if name in run.measured)
            value, low, high = first.shown[name]
            error = value / measured - 1
            found.append(
                Compared(first.device, name, first.memory_kind, error, low <= measured <= high)
            )
    return found


def again(runs: Sequence[Evidence]) -> list[Compared]:
    """Compare peaks that today's code predicts of the same settings."""
    found = []
    with kept_traces() as traces:
        for same in _repeated(runs):
            first = same[0]
            if "many lengths" in first.memory_kind or not first.settings.get("model"):
                continue
            device = _device_of(first)
            if device is None or PEAK not in first.measured:
                continue
            process = int(first.memory_terms.get("process", 0)) - HOST_GROWTH_BYTES
            facts = Facts(process_bytes=max(0, process))
            try:
                derived = derive_with_memory(recipe_of(first.settings), device, traces, facts)
            except BrimfulError as error:
                print(f"left out: {error}")
                continue
            predicted = derived.plan.predicted[PEAK]
            measured = statistics.median(run.measured[PEAK] for run in same)
            inside = predicted.low <= measured <= predicted.high
            error_again = predicted.value / measured - 1
            found.append(Compared(first.device, PEAK, first.memory_kind, error_again, inside))
    return found


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe whose step is the run's.

    Raises:
        BrimfulError, KeyError, ValueError: the settings are none of a recipe.
    """
    fixed = {
        name: settings[name]
        for name in ("precision", "attention", "recompute", "compile", "loss_chunk", "threads")
        if settings[name] is not None
    }
    if settings["update"] in UPDATES:
        fixed["optimizer"] = settings["update"]
    values = {
        "name": "evidence",
        "method": settings["method"],
        "model": settings["model"],
        "sequence_length": settings["sequence_length"],
        "batch": {"sequences": settings["effective_batch"]},
        "training": {"steps": settings["total_steps"] or 100},
        "data": {"path": "unread.txt", "layout": settings["layout"]},
        "optimizer": {
            "kind": settings["optimizer"],
            "weights": settings["weights"],
            "learning_rate": 1e-3,
        },
        "quantize": settings["quantize"],
        "plan": {**fixed, "micro_batch": settings["micro_batches"][0], "earlier_runs": False},
    }
    if isinstance(settings["model"], dict):
        values["tokenizer"] = {"kind": "bpe", "vocabulary": settings["vocabulary"]}
    if settings["adapter"] is not None:
        values["adapter"] = settings["adapter"]
    return Recipe.model_validate(values)


def _device_of(run: Evidence) -> Device | None:
    """Return the device as the planner needs it; None for one that the catalog does not have."""
    if run.settings["device_kind"] != "cpu":
        try:
            return catalog.get(run.device)
        except BrimfulError:
            return None
    memory_bytes, threads = run.settings["device_memory_bytes"], run.settings["threads"]
    return Device(
        name=run.device,
        kind="cpu",
        memory_bytes=memory_bytes,
        abilities=abilities_of("cpu", None),
        threads=threads,
        source="evidence",
    )


def _repeated(runs: Iterable[Evidence]) -> list[list[Evidence]]:
    groups: dict[tuple[str, ...], list[Evidence]] = defaultdict(list)
    for run in runs:
        groups[settings_of(run)].append(run)
    return list(groups.values())


def summaries(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return errors by device and value."""
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for each in compared:
        groups[each.device, each.name].append(each)
    return [
        {
            "device": device,
            "name": name,
            "n": len(group),
            "signed_median": statistics.median(each.error for each in group),
            "median": statistics.median(abs(each.error) for each in group),
            "worst": max(abs(each.error) for each in group),
            "inside": sum(bool(each.inside) for each in group) / len(group),
        }
        for (device, name), group in sorted(groups.items())
        if name in NAMES
    ]


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print errors, a line for each device and value."""
    print(
        f"\n{title}\n{'device':40} {'what':18} {'n':>4} {'signed':>8} {'median':>8} {'worst':>8} inside"
    )
    for row in rows:
        print(
            f"{row['device'][:40]:40} {NAMES[row['name']]:18} {row['n']:4}"
            f" {row['signed_median']:+8.1%} {row['median']:8.1%} {row['worst']:8.1%}"
            f" {row['inside']:6.0%}"
        )


def main() -> None:
    """Read the files and print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    runs = [run for path in asked.files for run in read(path)]
    as_shown, made_again = summaries(shown(runs)), summaries(again(runs))
    print(f"{len(runs)} runs of {len({run.device for run in runs})} devices")
    print_table("as plans showed it", as_shown)
    print_table("as today's code predicts it", made_again)
    if not asked.no_record:
        write_record("evidence", {"runs": len(runs), "shown": as_shown, "again": made_again})


if __name__ == "__main__":
    main()
