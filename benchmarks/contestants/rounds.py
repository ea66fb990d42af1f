"""A comparison: what is compared, the rounds in which contestants take turns, and the record."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contestants.process import Contestant, fastest

Start = Callable[[str, str], Contestant]
"""Starts a contestant by its name, in a folder of what was prepared."""


@dataclass(frozen=True)
class Found:
    """What all rounds gave, by contestant.

    Attributes:
        about: What was prepared for everyone.
        losses: Of the gate's steps.
        seconds: CPU seconds for a unit of work, round by round.
        told: What each told at its end (`worker.Worker.tell`), and of its start.
    """

    about: Mapping[str, Any]
    losses: Mapping[str, Sequence[float]]
    seconds: Mapping[str, Sequence[float]]
    told: Mapping[str, Mapping[str, Any]]

    def equal_loss(self, name: str, reference: str, tolerance: float) -> dict[str, Any]:
        """Return the mean loss of the last ten steps of the gate, and whether it is the
        reference's.
        """
        last = {each: statistics.mean(losses[-10:]) for each, losses in self.losses.items()}
        off = last[name] / last[reference] - 1
        return {"loss_of_the_last_10_steps": last[name], "valid": abs(off) < tolerance}


class Comparison:
    """What tools are compared at; each kind of work is a subclass.

    Attributes:
        record: Name of its record.
        names: Contestants; the first one of another tool is that tool as it comes.
        judged_by: Contestants that all results are judged by, beside each one's `default`.
        needs: Module of the other tool, and the extra of brimful that brings it; None: it comes
            with brimful.
        unit: What a round's work is counted in.
        options: Settings of its own: name, default, help; those without a default (None) are paths
            that have to be given.
    """

    record: str
    names: Sequence[str]
    judged_by: Sequence[str] = ()
    needs: tuple[str, str] | None = None
    unit: str
    rounds, steps, warm_up, gate_steps = 7, 10, 3, 0
    options: Sequence[tuple[str, Any, str]] = ()

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write what all contestants read, and return what the record says of it."""
        raise NotImplementedError

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        """Be a contestant, in a process of its own."""
        raise NotImplementedError

    def default(self, name: str) -> str:
        """Return the other tool as it comes, that a contestant is compared with."""
        return self.names[0]

    def missing(self, names: Collection[str]) -> set[str]:
        """Return the contestants without which results of others do not count."""
        return {*map(self.default, names), *self.judged_by} - {*names}

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        """Return whether a contestant's result counts (`valid`), and what else is said of it."""
        raise NotImplementedError

    def repeat(self, start: Start, told: dict[str, dict[str, Any]], options: Any) -> None:
        """Add to what contestants told what others tell that work apart from the rounds."""

    def record_name(self, options: argparse.Namespace) -> str:
        """Return the name of the record, which may depend on what was asked for."""
        return self.record

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        """Return what else the record has."""
        return {"data": found.about}


def interleaved(
    contestants: Sequence[Contestant], rounds: int, end_s: float, loads: list[float]
) -> Iterator[Contestant]:
    """Every contestant once a round, forwards and backwards in turn; the machine's load goes into
    `loads` before each round, and none but the first begins after `end_s`.
    """
    for number in range(rounds):
        if number and time.monotonic() > end_s:
            return
        loads.append(os.getloadavg()[0])
        yield from contestants if number % 2 == 0 else reversed(contestants)


def compare(kind: Comparison, folder: Path, options: argparse.Namespace) -> None:
    """Let all contestants work in turns, print what came of it, and write the record if asked to."""
    from record import of_this_kind_of_cpu, write_record

    end_s = time.monotonic() + 60 * options.minutes
    about = kind.prepare(folder, options)

    def start(name: str, part: str = "") -> Contestant:
        command = [sys.executable, *sys.argv, "--folder", str(folder / part), "--worker", name]
        return Contestant(name, folder / part, command)

    contestants = [start(name) for name in options.only]
    losses = {}
    if options.gate_steps:
        losses = {each.name: each.ask(f"losses {options.gate_steps}") for each in contestants}
    loads: list[float] = []
    seconds: dict[str, list[float]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, options.rounds, end_s, loads):
        cpu_s, work = each.ask(f"run {options.steps}")
        seconds[each.name].append(cpu_s / work)
        print(f"{each.name}: {work / cpu_s:,.2f} {kind.unit}/s", file=sys.stderr, flush=True)
    told = {
        each.name: {**each.ask("tell"), "start_and_warm_up": each.start} for each in contestants
    }
    for each in contestants:
        each.quit()
    kind.repeat(start, told, options)
    found = Found(about, losses, seconds, told)
    results = {name: result(kind, name, found) for name in seconds}
    for name, values in results.items():
        print(name, json.dumps(values))
    kept = {
        "rounds": len(loads),
        "steps": options.steps,
        "contestant_threads": 1,
        "not_run": [name for name in kind.names if name not in options.only],
        "loads": loads,
        **kind.values(found, results, options),
        "results": results,
    }
    if options.record:
        print(write_record(of_this_kind_of_cpu(kind.record_name(options)), kept))


def result(kind: Comparison, name: str, found: Found) -> dict[str, Any]:
    """Return how quick a contestant is beside the other tool as it comes and at its best, what it
    told, and whether it counts.
    """
    from record import ratio_interval, summary

    own, default = found.seconds[name], kind.default(name)
    group = {each: s for each, s in found.seconds.items() if kind.default(each) == default}
    best = fastest(group)
    return {
        f"{kind.unit}_per_cpu_s": summary([1 / each for each in own]),
        "speed_over_default": ratio_interval(found.seconds[default], own),
        "best_of_others": best,
        "speed_over_best": ratio_interval(found.seconds[best], own),
        **found.told[name],
        **kind.judge(name, found),
    }
