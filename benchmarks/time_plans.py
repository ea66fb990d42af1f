"""Published step times on several GPUs beside what plans for several devices would say: brimful's own
`planning.timing` and `planning.communication`, not the formula that is fitted.

    python benchmarks/time_plans.py CSV [--recorded] [--no-record]

Rows are those that divide whole layers: the model whole on each GPU, or in parts (FSDP). Plans divide
neither single products nor sequences, and have no stages, so such rows are counted and left out. Of
a row's program come its operators and, where it is no loop like brimful's, what the fit says of it:
how much longer its operators take, how long it issues one, and whether it gathers ahead. Fitted figures are taken from
efficiencies.toml ("as shipped", which has seen all rows), and from fits without the row's source or
GPU, which start there. Rows of one GPU whose operators have to be recorded first, in some ten CPU
seconds each, take part in these fits only with --recorded.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.units import format_duration
from brimful.hardware.fitted import rates_with
from brimful.hardware.groups import MOST_PER_MACHINE, Group
from brimful.planning.communication import Exchange, Reached, waiting_time
from brimful.planning.plan import Spread
from brimful.planning.timing import step_time
from record import RECORDS, write_record
from time_model import (
    GUESS_P,
    NAMES,
    NORM,
    Array,
    Table,
    _gather_bytes,
    _units,
    board,
    exposed,
    fit,
    values_of,
    work_of_one_gpu,
)
from time_shipped import COMPILED
from time_stack import TimedStack
from time_truth import REFIT_ROUNDS, intervals, kind_of, read
from time_work import gpu_weights

WHOLE_LAYERS = "several GPUs, whole layers"
GROUPS: Mapping[str, Callable[[TimedStack], str]] = {
    "source left out": lambda stack: stack.source,
    "gpu left out": lambda stack: stack.device,
}
WORST = 12


def plan_seconds(stack: TimedStack, values: Mapping[str, float]) -> float:
    """The time of a step as a plan for several devices says it, with these fitted figures."""
    known = board(stack.device)
    cudnn = stack.attention == "flash3"
    rates = rates_with(known.device, values, NORM, power_w=known.power_w, cudnn=cudnn)
    if stack.family == "megatron":
        rates = replace(rates, host_s=values["host megatron"])
    work = work_of_one_gpu(stack)
    passes = int(stack.accumulation)
    precision = "fp16" if stack.products == "fp16" else "bf16"
    time = step_time(
        lambda _: work, (1,) * passes, rates, precision=precision, compiled=stack.family in COMPILED
    )
    longer = values.get(f"stack {stack.family}", 1.0)
    update_s = time.terms.get("optimizer update", 0.0)
    time = replace(time, seconds=update_s + longer * (time.seconds - update_s))
    waiting = waiting_time(
        time, passes, _group(stack), _spread(stack), _exchange(stack), _reached(stack, values)
    )
    return time.seconds + waiting.value


def _group(stack: TimedStack) -> Group:
    gpus = stack.spread.gpus
    per_machine = min(gpus, MOST_PER_MACHINE)
    return Group(board(stack.device).device, per_machine, max(1, gpus // per_machine))


def _spread(stack: TimedStack) -> Spread:
    return "sharded" if stack.spread.sharded == "full" else "replicated"


def _exchange(stack: TimedStack) -> Exchange:
    trained_bytes = 0 if stack.adapter is not None else 2 * gpu_weights(stack)
    units = round(_units(stack) / 2)  # a plan counts a forward and a backward pass
    return Exchange(round(_gather_bytes(stack)), round(trained_bytes), units)


def _reached(stack: TimedStack, values: Mapping[str, float]) -> Reached:
    return replace(Reached.of(values), never_hidden=exposed(stack.family, values))


def shipped_start() -> Array:
    """Where refits start: the recorded fit on all rows, as logarithms over the guesses."""
    parameters = json.loads((RECORDS / "time_truth.json").read_text())["parameters"]
    values = np.array([parameters[name]["value"] for name in NAMES])
    start_P: Array = np.log(values / GUESS_P)
    return start_P


def without_each(
    table: Table, chosen: Sequence[TimedStack], group_of: Callable[[TimedStack], str]
) -> list[float]:
    """What plans would say of the chosen rows by figures fitted on the rows of all other groups."""
    start_P = shipped_start()
    groups = np.array([group_of(stack) for stack in table.stacks])
    values = {}
    for group in dict.fromkeys(map(group_of, chosen)):
        values[group] = values_of(fit(table, groups != group, start_P, REFIT_ROUNDS))
        print(f"fitted without {group}", flush=True)
    return [plan_seconds(stack, values[group_of(stack)]) for stack in chosen]


def summary(
    stacks: Sequence[TimedStack], seconds: Sequence[float], inside: Sequence[bool]
) -> dict[str, Any]:
    """Errors in percent of the measurement."""
    measured_R = np.array([stack.measured_s for stack in stacks])
    errors_R = np.array(seconds) / measured_R - 1
    return {
        "rows": len(stacks),
        "median_percent": round(100 * float(np.median(np.abs(errors_R))), 1),
        "ninetieth_percent": round(100 * float(np.quantile(np.abs(errors_R), 0.9)), 1),
        "bias_percent": round(100 * float(np.median(errors_R)), 1),
        "inside_interval_percent": round(100 * float(np.mean(inside)), 1),
    }


def inside_of(stacks: Sequence[TimedStack], seconds: Sequence[float]) -> list[bool]:
    """Whether each measurement lies in the interval that rows of other sources give."""
    ratio_R = np.log(np.array([stack.measured_s for stack in stacks]) / np.array(seconds))
    low_R, high_R = intervals(stacks, ratio_R)
    return [
        bool(low <= ratio <= high) for low, ratio, high in zip(low_R, ratio_R, high_R, strict=True)
    ]


def by_source(
    stacks: Sequence[TimedStack], seconds: Sequence[float], inside: Sequence[bool]
) -> dict[str, Any]:
    """A summary for each source, and for all."""
    made = {"all": summary(stacks, seconds, inside)}
    for source in sorted({stack.source for stack in stacks}):
        members = [index for index, stack in enumerate(stacks) if stack.source == source]
        made[source] = summary(
            [stacks[index] for index in members],
            [seconds[index] for index in members],
            [inside[index] for index in members],
        )
    return made


def worst(stacks: Sequence[TimedStack], seconds: Sequence[float]) -> list[str]:
    """The rows that are farthest off."""
    order = np.argsort(
        [-abs(np.log(s / x.measured_s)) for x, s in zip(stacks, seconds, strict=True)]
    )
    return [
        f"{stacks[i].source} {stacks[i].configuration} on {stacks[i].spread.gpus} x"
        f" {stacks[i].device}: {format_duration(seconds[i])} said,"
        f" {format_duration(stacks[i].measured_s)} measured"
        for i in order[:WORST].tolist()
    ]


def main() -> None:
    """Say what plans say of every usable row, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv")
    parser.add_argument(
        "--recorded", action="store_true", help="record steps of one GPU for the fits"
    )
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    stacks, _ = read(asked.csv)
    chosen = [
        stack
        for stack in stacks
        if kind_of(stack) == WHOLE_LAYERS
        and stack.spread.sharded != "gradients"
        and stack.products in {"bf16", "fp16"}
    ]
    kinds = Counter(kind_of(stack) for stack in stacks if stack.spread.gpus > 1)
    shipped = values_of(shipped_start())
    said = {"as shipped": [plan_seconds(stack, shipped) for stack in chosen]}
    print("as shipped", summary(chosen, said["as shipped"], inside_of(chosen, said["as shipped"])))
    table = Table([stack for stack in stacks if asked.recorded or stack.spec is None])
    for name, group_of in GROUPS.items():
        said[name] = without_each(table, chosen, group_of)
    results = {
        name: by_source(chosen, seconds, inside_of(chosen, seconds))
        for name, seconds in said.items()
    }
    for name, rows in results.items():
        for source, figures in rows.items():
            print(f"{name:16s} {source:40s} {figures}")
    values = {
        "results": results,
        "worst": worst(chosen, said["source left out"]),
        "one_gpu_rows_not_in_fits": len(stacks) - len(table.stacks),
        "several_gpus_rows": sum(kinds.values()),
        "left_out": {
            "tensor, pipeline or context parallelism": sum(kinds.values()) - kinds[WHOLE_LAYERS],
            "only gradients and states in parts, TF32 or Float8": kinds[WHOLE_LAYERS] - len(chosen),
        },
    }
    if not asked.no_record:
        print(write_record("time_plans", values))


if __name__ == "__main__":
    main()
