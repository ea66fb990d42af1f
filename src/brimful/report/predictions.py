"""Every prediction of a run's plan beside what was measured."""

from dataclasses import dataclass

from brimful.base.text import plural
from brimful.base.types import Bounds, Numbers, Texts
from brimful.hardware.kept_rates import BUSY_FROM
from brimful.planning.cost import OF_ROUNDS
from brimful.report.judgement import Judgement, judge
from brimful.report.quantities import label
from brimful.report.tuned import before_tuning
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import (
    answering_time_s,
    energy_source,
    measured,
    memory_source,
    steady,
)
from brimful.runs.side_by_side import read_side_by_side

PREDICTED_NAMES = {
    "parameters": "Parameters",
    "peak_memory_bytes": "Peak memory",
    "allocated_memory_bytes": "Peak memory of tensors",
    "device_memory_bytes": "Peak memory of the device",
    "step_time_s": "Time per optimizer step",
    "tokens_per_s": "Tokens per second",
    "mfu": "Model FLOPs utilisation",
    "training_time_s": "Training time",
    "evaluation_time_s": "Evaluation time",
    "base_time_s": "Time for the base's loss",
    "reference_time_s": "Time for the reference",
    "sampling_time_s": "Time to draw answers",
    "verifying_time_s": "Time to verify answers",
    "scoring_time_s": "Time to score answers",
    "checkpoint_time_s": "Checkpoint time",
    "start_time_s": "Compiling and starting",
    "total_time_s": "Time in all",
    "base_answers_time_s": "Time for the base's answers",
    "energy_wh": "Energy",
    "cost_usd": "Cost",
}


@dataclass(frozen=True)
class Comparison:
    """One prediction of the plan beside its measurement, in the unit that ends `key`.

    Attributes:
        basis: How the prediction was derived.
        source: How the measurement was made, "" where nothing was measured.
    """

    key: str
    name: str
    predicted: float
    interval: Bounds | None
    measured: float | None
    basis: str
    source: str = ""

    @property
    def judgement(self) -> Judgement:
        """How good it was."""
        return judge(self.predicted, self.interval, self.measured)

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured: positive where the plan was too pessimistic."""
        return self.judgement.error


def comparisons(run: RunFolder) -> list[Comparison]:
    """Return every number that the plan predicted, in a fixed order, with what was measured.

    The parameters of a model with adapters are left out: the saved ones are only those that were
    trained.
    """
    if run.plan is None:
        return []
    values, sources = {**measured(run), **_base_answers(run)}, _sources(run)
    found = []
    for key in dict.fromkeys([*PREDICTED_NAMES, *run.plan.predicted]):
        predicted = run.predicted(key)
        if predicted is None or (key == "parameters" and run.recipe.adapter):
            continue
        # Parameters are counted, so they are no `Prediction` and have no basis.
        prediction = run.plan.predicted.get(key)
        found.append(
            Comparison(
                key,
                name=PREDICTED_NAMES.get(key, label(key)),
                predicted=predicted,
                interval=run.predicted_interval(key),
                measured=values.get(key),
                basis=prediction.basis if prediction else "",
                source=sources.get(key, "") if key in values else "",
            )
        )
    return found


def _base_answers(run: RunFolder) -> Numbers:
    """Return the time in which the base wrote the samples and answers to tasks that the plan
    foresaw; nothing until all of them are there.
    """
    foreseen = run.plan.base if run.plan else None
    seconds = 0.0
    if foreseen is None or not (foreseen.samples or foreseen.tasks):
        return {}
    if foreseen.samples:
        pairs = read_side_by_side(run.folder)
        if not pairs or pairs[0].seconds is None:
            return {}
        seconds += pairs[0].seconds
    if foreseen.tasks:
        before = before_tuning(run)
        if before is None or not before.tasks.summaries:
            return {}
        seconds += answering_time_s(before)
    return {"base_answers_time_s": seconds}


def _sources(run: RunFolder) -> Texts:
    """Return how each measurement was made, in words."""
    steps = steady(run)
    step_time = f"median of {plural(len(steps.records), 'recorded step')}"
    if steps.num_left_out:
        step_time += f"; {steps.num_left_out} at the start left out (compiling, warming up)"
    if _lost(run):
        step_time += f", without the {_lost(run):.0%} of their time that other programs took"
    return {
        "parameters": "counted in the saved model",
        "peak_memory_bytes": memory_source(run),
        "allocated_memory_bytes": "the highest of all steps: tensors, by torch's allocator",
        "step_time_s": step_time,
        "tokens_per_s": "at the median step",
        "mfu": "at the median step; arithmetic and peak as planned",
        "training_time_s": "all steps, without compiling and warming up",
        "evaluation_time_s": plural(len(run.evaluations), "evaluation"),
        "base_time_s": "held-out loss before the first step",
        "reference_time_s": "answers scored by the model from before training",
        **dict.fromkeys(OF_ROUNDS, "rounds of rewarded answers, between steps"),
        "checkpoint_time_s": plural(len(run.checkpoints), "checkpoint"),
        "start_time_s": (
            "the time in all without training, evaluations, checkpoints and rounds of answers"
        ),
        "total_time_s": (
            f"{plural(len(run.sessions), 'session')}; loading libraries, planning and reading"
            " data not counted"
        ),
        "base_answers_time_s": "what the model before tuning wrote after the run",
        "energy_wh": energy_source(run),
        "cost_usd": "the planned price for the measured time in all",
    }


def told_of_others(run: RunFolder) -> str:
    """Return what other programs took of a run's steps and where that counts, as a sentence; empty
    where it was little.
    """
    if not _lost(run):
        return ""
    return (
        f"Other programs took {_lost(run):.0%} of the steps' time: step time, tokens per second and"
        " MFU are measured without it, training time and time in all with it."
    )


def _lost(run: RunFolder) -> float:
    lost_share = steady(run).lost_share
    return lost_share if lost_share >= BUSY_FROM else 0.0


def memory_terms(run: RunFolder) -> list[tuple[str, float]]:
    """Return (what, bytes) of the predicted peak memory, the largest first."""
    return largest_first(run.plan.memory_terms if run.plan else {})


def time_terms(run: RunFolder) -> list[tuple[str, float]]:
    """Return (what, seconds) of the predicted step time, the longest first; empty where the plan
    does not say.
    """
    return largest_first(run.plan.time_terms if run.plan else {})


def largest_first(terms: Numbers) -> list[tuple[str, float]]:
    """Return terms above zero with their labels, the largest first."""
    known = [(label(name), float(size)) for name, size in terms.items() if size and size > 0]
    return sorted(known, key=lambda term: -term[1])
