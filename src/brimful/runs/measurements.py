"""What a run measured, under the names of the plan's predictions."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from safetensors import SafetensorError, safe_open

from brimful.base.types import Numbers
from brimful.hardware.kept_rates import BUSY_FROM
from brimful.runs.files import MODEL_FOLDER
from brimful.runs.folder import RunFolder
from brimful.runs.records import EvaluationRecord, ReferenceRecord, RoundRecord, StepRecord
from brimful.runs.sessions import once_per_run, total_seconds

BUFFERS = frozenset({"projection_HMD"})
"""Last names of tensors that are saved with a model and are no parameters: the random directions of
kernel attention.
"""


@dataclass(frozen=True)
class SteadySteps:
    """The step records that speak about speed, and how many steps before them do not.

    The first steps of a session compile, allocate and warm up, so they are left out. A run that has
    no others keeps all its steps.
    """

    records: tuple[StepRecord, ...]
    num_left_out: int

    @property
    def step_time_s(self) -> float | None:
        """Return the median, None without a timed step."""
        return _median(each.step_time_s for each in self.records)

    @property
    def own_time_s(self) -> float | None:
        """Return the median without what other programs took, None without a timed step."""
        return _median(each.own_time_s for each in self.records)

    @property
    def lost_share(self) -> float:
        """Return the share of the steps' time that other programs took of it."""
        took_s = sum(each.step_time_s or 0.0 for each in self.records)
        return sum(each.core_wait_s for each in self.records) / took_s if took_s else 0.0


def _median(times_s: Iterable[float | None]) -> float | None:
    known_s = [each for each in times_s if each is not None]
    return statistics.median(known_s) if known_s else None


@once_per_run
def steady(run: RunFolder) -> SteadySteps:
    """Return the steps of all sessions without the first ones of each."""
    later = [step for session in run.sessions for step in session.later_steps]
    if not later:
        return SteadySteps(run.steps, 0)
    num_left_out = sum(session.num_first_steps for session in run.sessions)
    return SteadySteps(tuple(later), num_left_out)


@once_per_run
def measured(run: RunFolder) -> Numbers:
    """Return what the run measured; a name without a measurement is left out.

    Step time, tokens a second and MFU are without what other programs took of a CPU, as the plan
    predicts them; times of stages are with it.
    MFU and cost are the plan's own arithmetic, peak and price over the measured time. A run that
    was faster than its plan's peak shows that the peak was measured too low: it has no MFU. Energy
    and times of whole stages are those of a finished run. They add up to the time in all, of which
    compiling and starting is what training, evaluations and checkpoints leave.
    """
    step_time_s = steady(run).own_time_s
    speedup = _ratio(run.predicted("step_time_s"), step_time_s)
    values = {
        "parameters": _whole_model_parameters(run),
        "peak_memory_bytes": peak_memory_bytes(run.steps),
        "allocated_memory_bytes": allocated_memory_bytes(run.steps),
        "step_time_s": step_time_s,
        "tokens_per_s": _ratio(_tokens_per_step(run), step_time_s),
        "mfu": _share(_product(run.predicted("mfu"), speedup)),
    }
    if run.is_finished:
        values |= stage_times_s(run)
        slowdown = _ratio(values.get("total_time_s"), run.predicted("total_time_s"))
        values |= {
            "cost_usd": _product(run.predicted("cost_usd"), slowdown),
            "energy_wh": energy_wh(run),
        }
    return {name: value for name, value in values.items() if value is not None}


def peak_memory_bytes(steps: Sequence[StepRecord]) -> float | None:
    """Return the highest memory of these steps, None where it was not measured."""
    return _highest(each.memory_bytes for each in steps)


def allocated_memory_bytes(steps: Sequence[StepRecord]) -> float | None:
    """Return the highest memory of tensors in these steps, None where it was not measured."""
    return _highest(each.allocated_bytes for each in steps)


def _highest(values: Iterable[float | None]) -> float | None:
    """Return the highest of the values that are known, None without any."""
    return max((value for value in values if value is not None), default=None)


def energy_wh(run: RunFolder) -> float | None:
    """Return the energy of the device in all sessions so far; None where it was not measured over
    the whole of every one of them.
    """
    spans = [(session.first_time, session.seconds) for session in run.sessions]
    return run.monitored.energy_wh_over(spans)


def energy_source(run: RunFolder) -> str:
    """Return how the energy was measured, in words."""
    if run.device_kind == "cpu":
        return "counters of the CPU packages (RAPL), other programs among it"
    has_counter = bool(run.monitored.series("energy_j")[1])
    return "the board's counter" if has_counter else "the board's power over time"


MEMORY_SOURCES = {
    "cuda": "reserved by torch's allocator",
    "mps": "allocated by the driver",
    "cpu": "memory of the whole process without mapped files",
}
"""What the peak of memory is, by kind of device."""


def memory_source(run: RunFolder) -> str:
    """Return how the peak of memory was measured, in words."""
    source = MEMORY_SOURCES.get(run.device_kind)
    return f"the highest of all steps: {source}" if source else "the highest of all steps"


STAGES = ("evaluation_time_s", "checkpoint_time_s", "start_time_s")
"""Times beside those of steps that are compared with their predictions."""


def comparable(run: RunFolder) -> Numbers:
    """Return step time, peak memory and, of a run in one session, the times of stages, as far as
    they say how good its plan's prediction of them was.

    An earlier session may have had another plan. The step time is left out where only the first
    steps were timed, where other programs disturbed the run, where memory ran out and micro-batches
    became smaller, where torch.compile failed, and where batches are as long as their documents.
    """
    if not run.sessions:
        return {}
    session = run.sessions[-1]
    values = {}
    peak = peak_memory_bytes(session.steps)
    allocated = allocated_memory_bytes(session.steps)
    if peak is not None:
        values["peak_memory_bytes"] = peak
    if allocated is not None:
        values["allocated_memory_bytes"] = allocated
    later = SteadySteps(session.later_steps, session.num_first_steps)
    is_sound = later.lost_share < BUSY_FROM and _runs_as_planned(run)
    if later.own_time_s is not None and is_sound:
        values["step_time_s"] = later.own_time_s
    if len(run.sessions) == 1 and run.is_finished:
        stages = stage_times_s(run)
        values |= {name: seconds for name in STAGES if (seconds := stages[name])}
    return values


def _runs_as_planned(run: RunFolder) -> bool:
    choices = run.plan.choices if run.plan else ()
    has_own_lengths = any(
        choice.name == "packing" and choice.value == "document" for choice in choices
    )
    return not (has_own_lengths or compile_failed(run) or run.out_of_memory)


def compile_failed(run: RunFolder) -> bool:
    """Return whether a run went on without the compiling that was planned."""
    return any("torch.compile failed" in event.message for event in run.events)


def stage_times_s(run: RunFolder) -> dict[str, float | None]:
    """Return seconds by stage, as `measured` names them, over all sessions so far."""
    total_s, training_s = total_time_s(run), training_time_s(run)
    evaluation_s = sum(each.seconds or 0.0 for each in run.evaluations)
    checkpoint_s = sum(each.seconds or 0.0 for each in run.checkpoints)
    base_s = sum(each.seconds or 0.0 for each in run.base_scores)
    reference_s, of_rounds = reference_time_s(run), round_times_s(run)
    start_s = None
    if total_s is not None and training_s is not None:
        known_s = training_s + evaluation_s + checkpoint_s + base_s + reference_s
        known_s += sum(of_rounds.values())
        start_s = max(0.0, total_s - known_s)
    return {
        "training_time_s": training_s,
        "evaluation_time_s": evaluation_s,
        "base_time_s": base_s if run.base_scores else None,
        "reference_time_s": reference_s or None,
        **{name: seconds or None for name, seconds in of_rounds.items()},
        "checkpoint_time_s": checkpoint_s,
        "start_time_s": start_s,
        "total_time_s": total_s,
    }


def total_time_s(run: RunFolder) -> float | None:
    """Return the time spent in all sessions, None without any. A killed session counts from its
    first step to its last record; what a reference takes comes before that.
    """
    sessions_s = total_seconds(run.sessions)
    return None if sessions_s is None else sessions_s + reference_time_s(run)


def reference_time_s(run: RunFolder) -> float:
    """Return the time in which the model from before training scored answers; 0 where it did
    not.
    """
    return sum(each.seconds or 0.0 for each in run.records_of(ReferenceRecord))


def round_times_s(run: RunFolder) -> Numbers:
    """Return the seconds in which answers were drawn, judged and scored between steps."""
    rounds = run.records_of(RoundRecord)
    return {
        "sampling_time_s": sum(each.sampling_s for each in rounds),
        "verifying_time_s": sum(each.verifying_s for each in rounds),
        "scoring_time_s": sum(each.scoring_s for each in rounds),
    }


def answering_time_s(run: RunFolder) -> float:
    """Return the time of writing and judging a model's answers to all tasks that were scored;
    tasks that shared answers wrote them once.
    """
    summaries = run.tasks.summaries.values()
    writing = {float(summary.values.get("seconds") or 0.0) for summary in summaries}
    judging = (float(summary.values.get("verification_seconds") or 0.0) for summary in summaries)
    return sum(writing) + sum(judging)


def training_time_s(run: RunFolder) -> float | None:
    """Return the time spent in optimizer steps alone, None where none was timed.

    How much longer the first steps of a session took than the median is compiling and warming up,
    and not counted here.
    """
    spans = step_spans(run)
    if not spans or steady(run).step_time_s is None:
        return None
    return sum(count * (step.step_time_s or 0.0) for count, step in spans) - warm_up_s(run)


def step_spans(run: RunFolder) -> list[tuple[int, StepRecord]]:
    """Return each timed step with the number of steps that it speaks for: those since the timed
    step before it. Steps that a rollback repeats count again.
    """
    timed = [each for each in run.steps if each.step_time_s is not None and each.step_time_s >= 0]
    if not timed:
        return []
    reached = [each.step for each in timed]
    counts = [after - before if after > before else 1 for before, after in pairwise([0, *reached])]
    counts[-1] += max(run.last_step, reached[-1]) - reached[-1]
    return list(zip(counts, timed, strict=True))


def warm_up_s(run: RunFolder) -> float:
    """Return how much longer the first steps of every session took than usual ones: compiling,
    allocating, first touches.
    """
    usual_s = steady(run).step_time_s
    if usual_s is None:
        return 0.0
    return sum(session.warm_up_s(usual_s) for session in run.sessions)


def losses_by_training_time(run: RunFolder) -> tuple[tuple[float, float], ...]:
    """Return (seconds of training before it, validation loss) of every evaluation while training;
    seconds as `training_time_s` counts them.
    """
    usual_s = steady(run).step_time_s
    if usual_s is None:
        return ()
    first_steps = {
        id(step) for session in run.sessions if session.later_steps for step in session.first_steps
    }
    seconds, reached, step_time_s = 0.0, 0, usual_s
    losses: dict[int, tuple[float, float]] = {}
    for record in run.records:
        if not isinstance(record, StepRecord | EvaluationRecord):
            continue
        if isinstance(record, StepRecord) and record.step_time_s is not None:
            step_time_s = record.step_time_s
            if id(record) in first_steps:
                step_time_s = min(step_time_s, usual_s)
        seconds += max(0, record.step - reached) * step_time_s
        reached = max(reached, record.step)
        is_evaluation = isinstance(record, EvaluationRecord)
        if is_evaluation and record.loss is not None and record.step >= reached:
            losses[record.step] = (seconds, record.loss)
    return tuple(losses.values())


def counted_parameters(model_folder: Path) -> int | None:
    """Return the numbers stored in the model's safetensors files (tied weights once, buffers not at
    all); None when there are none to count.
    """
    files = sorted(model_folder.glob("*.safetensors"))
    if not files:
        return None
    try:
        return sum(_numbers_in(path) for path in files)
    except (OSError, SafetensorError):
        return None


def _numbers_in(path: Path) -> int:
    with safe_open(path, framework="numpy") as tensors:
        # Not a mapping.
        names = [name for name in tensors.keys() if name.rpartition(".")[2] not in BUFFERS]  # noqa: SIM118
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


def _whole_model_parameters(run: RunFolder) -> int | None:
    """Return the parameters of a saved model, None where only adapters were saved or its files are
    damaged.
    """
    if run.model_problem:
        return None
    model_folder = run.folder / MODEL_FOLDER
    is_adapter = (model_folder / "adapter_config.json").exists()
    return None if is_adapter else counted_parameters(model_folder)


def _tokens_per_step(run: RunFolder) -> float | None:
    """Return the positions that a step feeds, padding among them, as the plan counts them; None in
    a run from before they were recorded.
    """
    return run.starts[-1].tokens_per_step if run.starts else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _share(value: float | None) -> float | None:
    """Return a share; None for what is none."""
    return value if value is not None and value <= 1 else None


def _product(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left * right
