"""What a run says before its first step: few lines of the width of the terminal, more if asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.libraries import untried
from brimful.base.text import plural, shortened_at_a_word, wrapped
from brimful.base.units import GIB, format_between, format_bytes, format_duration
from brimful.base.warning_codes import as_note, is_always_told
from brimful.chains.devices import process_bytes
from brimful.hardware.device import Device
from brimful.planning.plan import Plan
from brimful.planning.target import target_of
from brimful.recipe import Recipe
from brimful.recipe.summary import summary_of
from brimful.report.quantities import memory_of, time_and_cost
from brimful.training.admission import Admission
from brimful.training.world import World

MOST_LINES = 12
"""Lines before the first step."""
LATER_LINES = {"data": 8, "plan": 5, "steps": 2}
"""Lines that are kept free for what is said from here on: by the data, the plan, and the loop,
which says that it starts and may score the model first.
"""


class RunOptions(TypedDict, total=False):
    """How a command wants its runs to be trained.

    Attributes:
        fresh: Start over; unfinished work is moved aside.
        accept: Keys whose changed values a continued run accepts.
        plan_file: A saved plan to use as it is.
        part: The whole recipe that a run is part of, and its variant there.
        explain: Print the whole plan before the first step.
        world: Ranks that train and score together; all but the first follow, and return folders.
    """

    fresh: bool
    accept: Sequence[str]
    plan_file: Path | None
    part: tuple[Recipe, str] | None
    explain: bool
    world: World


class Opening:
    """Prints what a run says before its first step, in at most `MOST_LINES` lines beside those
    that are always told.

    Args:
        console: Where to print; its width is respected.
        explain: Print everything, however long.
    """

    def __init__(self, console: Console, *, explain: bool = False) -> None:
        self._say = console_printer(console)
        self.width, self.explain = console.width, explain
        self._left = MOST_LINES

    def say(self, lines: Sequence[str], before: str) -> None:
        """Print lines, first those that are always told, then as many of the others as leave room
        for what is said from `before`, a key of `LATER_LINES`, on. A last line says how many are
        left out.
        """
        room = max(2, self._left - LATER_LINES[before])
        told = [*filter(is_always_told, lines)]
        whole = [self._wrapped(line) for line in lines if line and line not in told]
        shown = sum(map(len, whole))
        left_out = 0
        while not self.explain and whole and shown + bool(left_out) > room:
            shown -= len(whole.pop())
            left_out += 1
        printed = [part for line in whole for part in line]
        if left_out:
            printed.append(f"({plural(left_out, 'more line')} with --explain)")
        self._left -= len(printed)
        printed[:0] = [part for line in told for part in self._wrapped(line)]
        if printed:
            self._say("\n".join(printed))

    def _wrapped(self, line: str) -> list[str]:
        return wrapped(line, self.width, 2)

    def remark(self, text: str) -> None:
        """Print a message that comes before the data are read."""
        self.say(text.splitlines(), "data")


def greeting(recipe: Recipe, device: Device, admission: Admission, width: int) -> list[str]:
    """Return the run, the machine, and what changed since the last session, a line each; of what
    is trained and of the machine what fits `width`.
    """
    machine = [f"machine: {device.name}"]
    if device.threads:
        machine.append(plural(device.threads, "thread"))
    if device.free_memory_bytes:
        machine.append(f"{format_bytes(device.free_memory_bytes)} free")
    for dtype, rate in device.dense_flop_per_s.items():
        machine.append(f"{dtype} {rate / 1e9:,.0f} GFLOP/s")
    title = shortened_at_a_word(f"{recipe.run_name}: {summary_of(recipe)}", width)
    while len(", ".join(machine)) > width and len(machine) > 1:
        machine.pop()
    lines = [title, ", ".join(machine)]
    if admission.moved_aside:
        lines.append(f"the unfinished run was moved to {admission.moved_aside}")
    if admission.lost_model:
        lines.append(f"{admission.lost_model}; it is written again from its checkpoint")
    if names := "; ".join(untried()):
        lines.append(as_note(names, "B411"))
    lines += [f"changed since the last session: {change}" for change in admission.changed]
    return lines


def plan_lines(plan: Plan, device: Device, leave_gib: float = 0.0) -> list[str]:
    """Return a plan in three lines: memory, time and cost of the run; its step; where the rest is
    found. `leave_gib`: the recipe's plan.leave_gib.
    """
    predicted = plan.predicted
    used = predicted.get("device_memory_bytes", predicted.get("peak_memory_bytes"))
    summary = "plan: a part of the model on each device, whose memory is not predicted"
    if used is not None:
        leave_bytes = round(leave_gib * GIB)
        usable_bytes = target_of(device, process_bytes(device), leave_bytes).usable_bytes
        summary = f"plan: {memory_of(used.value, usable_bytes)}"
    step = [f"{plan.passes()} x {plan.sequence_length:,} tokens", plan.precision]
    if plan.compile:
        step.append("compiled")
    if plan.recompute:
        step.append("recomputed" if plan.recompute is True else "recomputed selectively")
    if plan.devices > 1:
        summary += "; how long ranks wait for each other is not predicted"
    elif "step_time_s" in predicted:
        summary += time_and_cost(predicted, intervals=True)
        entry = predicted["step_time_s"]
        between = format_between(format_duration, entry.low, entry.high)
        step_time = format_duration(entry.value)
        step.insert(0, f"{step_time} ({between})" if between else step_time)
    return [
        summary,
        f"  a step: {', '.join(step)}",
        "  why: run with --explain, or see the report",
    ]
