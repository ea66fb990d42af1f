"""The page of a proof: what held, what did not, and every prediction beside its measurement."""

from collections.abc import Sequence
from pathlib import Path

from brimful.base.text import plural
from brimful.base.units import format_duration
from brimful.prove.record import FAILED, HELD, SKIPPED, Outcome, ProofRecord
from brimful.prove.training import SPEEDS
from brimful.prove.trials import PARTS, TRAINING, Trial
from brimful.report.judgement import guesses_in_words, judgements_in_words
from brimful.report.page.html import write_view
from brimful.report.page.predicted import judged_blocks
from brimful.report.predictions import PREDICTED_NAMES, Comparison
from brimful.report.quantities import capitalised, format_quantity
from brimful.report.table import Table, table_of
from brimful.report.views import Paragraph, View, section, text

FILE_NAME = "index.html"
SHORT_NAMES = {
    "allocated_memory_bytes": "Tensors",
    "peak_memory_bytes": "Peak memory",
    "device_memory_bytes": "Device",
    "step_time_s": "Step",
}

MEASURED = (
    "Tensors: allocated by torch. Peak memory: held by"
    " torch's allocator; on a CPU by the process. Device: all of it that is in use."
)
SPEED = (
    "Model FLOPs utilisation is the share of the device's peak that the model's own operations"
    " take. Energy is that of the whole run, where the device counts it."
)


def write_page(folder: Path, record: ProofRecord, trials: Sequence[Trial]) -> Path:
    """Write `folder/index.html` from what was tried so far, and return its path."""
    return write_view(proof_view(record, trials), folder / FILE_NAME)


def proof_view(record: ProofRecord, trials: Sequence[Trial]) -> View:
    """Return all that is told of a proof so far."""
    outcomes = {each.name: record.outcomes.get(each.name) for each in trials}
    facts = (f"{name} {value}" for name, value in record.machine.items() if name != "device")
    lead, *further = sentences(record, trials)
    parts = {
        part: _table([each for each in trials if each.part == part], outcomes) for part in PARTS
    }
    compared, speeds = _compared(trials, outcomes), _speed_table(trials, outcomes)
    measured = (Paragraph(MEASURED, "note"), *judged_blocks(compared)) if compared else ()
    sections = (
        *(section(part, part, table) for part, table in parts.items()),
        section("measured", "Predicted and measured", *measured),
        section("speeds", "Speed and energy", *text(SPEED if speeds else "", "note"), speeds),
    )
    return View(
        f"Does it hold on {record.machine['device']}?",
        "proof on this machine",
        lead,
        (*(Paragraph(each, "verdict") for each in further), Paragraph(", ".join(facts), "note")),
        tuple(each for each in sections if each.blocks),
        footer=(
            "Written by brimful prove. Recipes, runs and outputs lie beside this page; the figures"
            " are in prove.json."
        ),
    )


def sentences(record: ProofRecord, trials: Sequence[Trial]) -> list[str]:
    """Return what was found, in a few sentences: what held, then how good predictions were."""
    tried = [record.outcomes[each.name] for each in trials if each.name in record.outcomes]
    held, failed = _count(tried, HELD), _count(tried, FAILED)
    first = f"{held} of {plural(held + failed, 'trial')} held"
    further = []
    if skipped := _count(tried, SKIPPED):
        further.append(f"{skipped} could not be tried here")
    if left := len(trials) - len(tried):
        further.append(f"{left} were not reached")
    found = ["; ".join([first, *further]) + "."]
    for key in SHORT_NAMES:
        judged = [
            each.judgement for outcome in tried for each in outcome.measured if each.key == key
        ]
        if words := judgements_in_words(judged):
            found.append(f"{PREDICTED_NAMES[key]}: {words}.")
        elif guesses := guesses_in_words(judged):
            found.append(f"{PREDICTED_NAMES[key]}: {guesses}.")
    return found


def _count(outcomes: Sequence[Outcome], status: str) -> int:
    return sum(each.status == status for each in outcomes)


def _table(trials: Sequence[Trial], outcomes: dict[str, Outcome | None]) -> Table | None:
    rows = []
    for each in trials:
        outcome = outcomes[each.name]
        if outcome is None:
            rows.append((each.title, "not reached", "", ""))
        else:
            what = capitalised(outcome.what)
            rows.append((each.title, outcome.status, what, format_duration(outcome.seconds)))
    return table_of(("Trial", "Outcome", "What happened", "Time"), rows)


def _compared(trials: Sequence[Trial], outcomes: dict[str, Outcome | None]) -> list[Comparison]:
    """Return every prediction of a training that was met by a measurement."""
    return [
        Comparison(
            each.key,
            f"{trial.title}: {SHORT_NAMES[each.key].lower()}",
            each.predicted,
            (each.low, each.high),
            each.measured,
            "",
        )
        for trial in trials
        if trial.part == TRAINING and (outcome := outcomes[trial.name]) is not None
        for each in outcome.measured
    ]


def _speed_table(trials: Sequence[Trial], outcomes: dict[str, Outcome | None]) -> Table | None:
    """Return what each training measured of speed and energy, as far as the device tells it."""
    facts = {
        trial.title: outcome.facts
        for trial in trials
        if trial.part == TRAINING and (outcome := outcomes[trial.name]) is not None
    }
    keys = [key for key in SPEEDS if any(key in each for each in facts.values())]
    rows = [
        (title, *(format_quantity(key, each[key]) if key in each else "" for key in keys))
        for title, each in facts.items()
        if any(key in each for key in keys)
    ]
    return table_of(("Training", *(PREDICTED_NAMES[key] for key in keys)), rows)
