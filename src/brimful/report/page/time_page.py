"""Where the time went, as a report shows it: the plan's prediction above the measurement, and
advice.
"""

from brimful.base.units import format_bytes, format_duration
from brimful.report.bars import Bar, Bars, parts, share_text
from brimful.report.page.advice import advice
from brimful.report.predictions import time_terms
from brimful.report.quantities import capitalised, format_step_time
from brimful.report.table import Table, table_of
from brimful.report.time_spent import NAMES, TimeSpent, time_spent
from brimful.report.views import Block, Chapter, Heading, Paragraph, section, text
from brimful.runs.folder import RunFolder

PLANNED = {
    "training_time_s": ("Compute", "compute_s"),
    "evaluation_time_s": ("Evaluation", "evaluation_s"),
    "base_time_s": ("Scoring the base", "base_s"),
    "reference_time_s": ("Scoring by the reference", "reference_s"),
    "sampling_time_s": ("Drawing answers", "sampling_s"),
    "verifying_time_s": ("Verifying answers", "verifying_s"),
    "scoring_time_s": ("Scoring answers", "scoring_s"),
    "checkpoint_time_s": ("Checkpoints", "checkpoint_s"),
    "start_time_s": ("Compiling and starting", "compile_s"),
}
"""Predictions of the plan: their name, and the measured part that they are told beside."""
_SHARED = {"sampling_s": "reference_s", "verifying_s": "loader_s", "scoring_s": "lost_s"}
"""Parts of runs that draw answers, in the colours of others that these rarely have."""
PLACES = {name: place for place, name in enumerate(each for each in NAMES if each not in _SHARED)}
PLACES |= {name: PLACES[other] for name, other in _SHARED.items()}


def time_bars(run: RunFolder) -> Bars:
    """The predicted time above the measured one, as far as they are known."""
    bars = (_planned(run), measured_bar(time_spent(run)))
    return Bars("time", "Where the time went", tuple(bar for bar in bars if bar))


def time_section(run: RunFolder) -> Chapter | None:
    """None where neither a plan nor a measurement says anything of time."""
    bars, spent, ranks = time_bars(run), time_spent(run), _ranks_table(run)
    step = Bar("predicted", tuple(parts(time_terms(run), "step_time_s")))
    if not bars.bars and not step.parts:
        return None
    advised = [Paragraph(capitalised(each.text), "advice", each.change) for each in advice(run)]
    blocks: list[Block] = [Heading("What would help"), *advised] if advised else []
    if ranks:
        blocks += [Heading("Ranks, in means up to the last checkpoint"), ranks]
    if step.parts:
        title = "Where the predicted time of a step goes"
        blocks += [Heading(title), Bars("", title, (step,))]
    told = text(_sentence(spent))
    return section("time", "Where the time went", *told, bars, *blocks, title="Time")


def _planned(run: RunFolder) -> Bar | None:
    predicted = {key: run.predicted(key) for key in PLANNED}
    terms = [
        (PLANNED[key][0], seconds, PLACES[PLANNED[key][1]])
        for key, seconds in predicted.items()
        if seconds
    ]
    return _bar("predicted", terms)


def measured_bar(spent: TimeSpent | None, name: str = "measured") -> Bar | None:
    """Return the bar of the measured parts; None where nothing was measured."""
    known = {key: getattr(spent, key) for key in NAMES} if spent else {}
    terms = [(NAMES[key], seconds, PLACES[key]) for key, seconds in known.items() if seconds]
    return _bar(name, terms)


def _bar(name: str, terms: list[tuple[str, float, int]]) -> Bar | None:
    if not terms:
        return None
    seconds = [(part, part_s) for part, part_s, _ in terms]
    found = parts(seconds, "time_s", [place for *_, place in terms])
    return Bar(name, tuple(found), format_duration(sum(part_s for _, part_s in seconds)))


def _sentence(spent: TimeSpent | None) -> str:
    """Say what the bar does not show: how long steps waited, and how long the device did
    nothing.
    """
    if spent is None:
        return ""
    computing = share_text(spent.share(spent.compute_s))
    sentences = [f"{computing} of {format_duration(spent.total_s)} was computing"]
    if spent.waiting_share is not None:
        sentences.append(f"steps waited {share_text(spent.waiting_share)} of their time for data")
    if spent.device_idle_share is not None:
        idle = share_text(spent.device_idle_share)
        sentences.append(f"no kernel ran for {idle} of the time that was watched")
    return f"{'; '.join(sentences)}."


def _ranks_table(run: RunFolder) -> Table | None:
    """A row for each rank, by the last checkpoint; None for a run on one device."""
    record = run.ranks
    if record is None:
        return None
    rows = [
        (
            f"{each.rank}{' (slowest)' * (each == record.slowest)}",
            each.machine,
            format_step_time(each.computing_s),
            format_step_time(each.communication_s),
            "" if each.memory_bytes is None else format_bytes(each.memory_bytes),
        )
        for each in record.ranks
    ]
    return table_of(
        ("Rank", "Machine", "Computing, a step", "Communication, a step", "Peak memory"), rows
    )
