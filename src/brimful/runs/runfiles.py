"""A run folder read once, leniently: what is there, and in words what is not. The other modules of
report only look at this value.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml
from safetensors import SafetensorError, safe_open

from brimful.base.errors import RunFolderError
from brimful.base.rundir import finite, read_journal, read_json
from brimful.hardware.monitored import Monitored, read_monitor
from brimful.runs.once import once_per_run

Json = dict[str, Any]
PURPOSE = {
    "recipe.yaml": "what was asked for",
    "plan.json": "the plan and its predictions",
    "environment.json": "the machine and the versions",
    "data.json": "the data and the tokenizer",
    "metrics.jsonl": "what was measured while training",
    "samples.jsonl": "text of the model",
    "scores.json": "the final scores",
}
LAYERS = "layers"
"""In scores.json: what was measured inside the model, not a split."""
BUFFERS = frozenset({"projection_HMD"})
"""Last names of tensors that are saved with a model and are no parameters: the random directions of
kernel attention.
"""


@dataclass(frozen=True)
class RunFiles:
    """Everything a report needs, as found. What could not be read is empty and stands in
    `missing`.
    """

    folder: Path
    recipe_text: str
    recipe: Json
    plan: Json
    environment: Json
    data: Json
    scores: Json
    records: tuple[Json, ...]
    samples: tuple[Json, ...]
    missing: dict[str, str]
    """File name -> one sentence about what is missing and why."""
    monitored: Monitored = field(default_factory=Monitored)
    """Samples of device and machine over all sessions; none in a run from before there was a
    monitor.
    """

    def of_kind(self, kind: str) -> list[Json]:
        """The records of one kind, in order."""
        return [record for record in self.records if record.get("kind") == kind]

    @property
    def name(self) -> str:
        return str(section(self.recipe, "run").get("name") or self.folder.resolve().name)

    @property
    def last_step(self) -> int:
        return max((_step_of(record) for record in self.records), default=0)

    @property
    def total_steps(self) -> int | None:
        starts = [number(record.get("total_steps")) for record in self.of_kind("start")]
        return int(starts[-1]) if starts and starts[-1] is not None else None

    @property
    def end(self) -> Json | None:
        """The record that ends the last session, None while it runs or when it was killed."""
        last = [record for record in self.records if record.get("kind") in ("start", "end")][-1:]
        return last[0] if last and last[0]["kind"] == "end" else None

    @property
    def is_finished(self) -> bool:
        return self.end is not None and (
            self.end.get("reason") == "finished" or self.last_step == self.total_steps
        )


def read_run(run_folder: Path) -> RunFiles:
    """Read what there is in a run folder.

    Raises:
        RunFolderError: no such folder, or none of a run's files in it.
    """
    if not run_folder.is_dir():
        raise RunFolderError(
            f"{run_folder} is not a folder. Give the folder of a run, such as runs/quickstart."
        )
    missing: dict[str, str] = {}

    def read(name: str, reader: Callable[[Path], Any], empty: Any) -> Any:
        path = run_folder / name
        if not path.exists():
            missing[name] = f"{name} ({PURPOSE[name]}) is not in the run folder."
            return empty
        try:
            value = reader(path)
        except (RunFolderError, OSError, ValueError, yaml.YAMLError) as error:
            missing[name] = f"{name} ({PURPOSE[name]}) cannot be read: {error}"
            return empty
        if not isinstance(value, type(empty)):
            missing[name] = (
                f"{name} ({PURPOSE[name]}) holds {type(value).__name__}, not"
                f" {type(empty).__name__}."
            )
            return empty
        return value

    def lines(path: Path) -> tuple[Json, ...]:
        return tuple(read_journal(path))

    recipe_text = read("recipe.yaml", lambda path: path.read_text(encoding="utf-8"), "")
    run = RunFiles(
        folder=run_folder,
        recipe_text=recipe_text,
        recipe=read(
            "recipe.yaml", lambda path: yaml.safe_load(path.read_text(encoding="utf-8")), {}
        ),
        plan=read("plan.json", read_json, {}),
        environment=read("environment.json", read_json, {}),
        data=read("data.json", read_json, {}),
        scores=read("scores.json", read_json, {}),
        records=read("metrics.jsonl", lines, ()),
        samples=read("samples.jsonl", lines, ()),
        missing=missing,
        monitored=read_monitor(run_folder),
    )
    if not any((run_folder / name).exists() for name in PURPOSE):
        raise RunFolderError(
            f"{run_folder} is not a run folder: it has none of {', '.join(PURPOSE)}."
        )
    return run


def is_tuned(run: RunFiles) -> bool:
    """Whether the run tunes a published model."""
    return isinstance(run.recipe.get("model"), str) or bool(section(run.data, "base"))


def kind_of(run: RunFiles) -> Literal["text", "masked", "labels"]:
    """What the model was trained for: to continue text, to fill in masked tokens, or to label
    texts.
    """
    kinds = {str(score.get("kind")) for score in run.scores.values() if isinstance(score, dict)}
    if run.recipe.get("method") == "classify" or "labels" in kinds:
        return "labels"
    return "masked" if run.recipe.get("method") == "mlm" or "masked" in kinds else "text"


def number(value: object) -> float | None:
    """`value` as a finite float, None for anything else."""
    return finite(value)


def section(value: object, key: str) -> Json:
    """The mapping `value[key]`, empty for anything else."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def items(value: object) -> list[Any]:
    """`value` when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def pair(value: object) -> tuple[float, float] | None:
    """An interval, written as [low, high] or as {"low": low, "high": high}; None for anything
    else.
    """
    ends = [value.get("low"), value.get("high")] if isinstance(value, dict) else items(value)
    numbers = [number(end) for end in ends]
    return (
        (numbers[0], numbers[1])
        if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None
        else None
    )


def series(records: list[Json], name: str) -> tuple[list[int], list[float]]:
    """Steps and finite values of one field; records without it are left out."""
    points = [
        (_step_of(record), value)
        for record in records
        if (value := number(record.get(name))) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]


@dataclass(frozen=True)
class Steady:
    """The step records that speak about speed, and how many steps before them do not.

    The first steps of a session compile, allocate and warm up. They are timed together with those
    of the same second, so this whole first group is left out. A run that has nothing else keeps all
    its steps.
    """

    records: tuple[Json, ...]
    num_left_out: int

    @property
    def step_time_s(self) -> float | None:
        """The median, None without a timed step."""
        times = series(list(self.records), "step_time_s")[1]
        return statistics.median(times) if times else None


def steady(run: RunFiles) -> Steady:
    """The steps of all sessions without the first ones of each."""
    kept: list[Json] = []
    num_left_out = 0
    for session in sessions(run):
        first, later = _first_group(session)
        kept += later
        num_left_out += _count(session, first)
    return Steady(tuple(kept), num_left_out) if kept else Steady(tuple(run.of_kind("step")), 0)


def _first_group(session: list[Json]) -> tuple[list[Json], list[Json]]:
    """Timed steps of a session: those with the very time of the first one, which was measured over
    all of them, and those after.
    """
    steps = [
        record
        for record in session
        if record.get("kind") == "step" and number(record.get("step_time_s")) is not None
    ]
    size = next(
        (
            place
            for place, record in enumerate(steps)
            if record["step_time_s"] != steps[0]["step_time_s"]
        ),
        len(steps),
    )
    return steps[:size], steps[size:]


def _count(session: list[Json], first: list[Json]) -> int:
    """Steps from the start of a session to the last of its first group, which are more than the
    records of a long run.
    """
    return (
        max(0, _step_of(first[-1]) - _step_of(session[0]))
        if first and session[0].get("kind") == "start"
        else len(first)
    )


def _step_of(record: Json) -> int:
    step = number(record.get("step")) or 0.0
    return int(step) if abs(step) < 2**53 else 0


@once_per_run
def measured(run: RunFiles) -> dict[str, float]:
    """What the run measured, under the names of the plan's predictions; a name without a
    measurement is left out.

    MFU and cost are the plan's own arithmetic, peak and price over the measured time. Energy and
    times of whole stages are those of a finished run. They add up to the time in all, of which
    compiling and starting is what training, evaluations and checkpoints leave.
    """
    steps, step_time_s = run.of_kind("step"), steady(run).step_time_s
    predicted = section(run.plan, "predicted")
    values: dict[str, float | None] = {
        "parameters": (
            None
            if (run.folder / "model" / "adapter_config.json").exists()
            else counted_parameters(run.folder / "model")
        ),
        "peak_memory_bytes": max(series(steps, "memory_bytes")[1], default=None),
        "step_time_s": step_time_s,
        "tokens_per_s": _ratio(_tokens_per_step(run), step_time_s),
        "mfu": _scaled(predicted, "mfu", _ratio(number(predicted.get("step_time_s")), step_time_s)),
    }
    if run.is_finished:
        values |= stage_times_s(run)
        hours_of_plan = _ratio(values.get("total_time_s"), number(predicted.get("total_time_s")))
        values |= {
            "cost_usd": _scaled(predicted, "cost_usd", hours_of_plan),
            "energy_wh": energy_wh(run),
        }
    return {name: value for name, value in values.items() if value is not None}


def energy_wh(run: RunFiles) -> float | None:
    """What the device took in all sessions so far; None where it was not measured over the whole of
    every one of them.
    """
    moments = [
        next(filter(None, (number(record.get("time")) for record in session)), None)
        for session in sessions(run)
    ]
    return run.monitored.energy_wh_over(
        [
            (moment, _session_seconds(session))
            for moment, session in zip(moments, sessions(run), strict=True)
        ]
    )


def energy_way(run: RunFiles) -> str:
    """How the energy was measured."""
    if section(run.plan, "device").get("kind") == "cpu":
        return "counters of the CPU packages (RAPL), other programs among it"
    return (
        "the board's counter"
        if run.monitored.series("energy_j")[1]
        else "the board's power over time"
    )


def memory_way(run: RunFiles) -> str:
    """What the peak of memory is on this kind of device."""
    kinds = {
        "cuda": "reserved by torch's allocator",
        "mps": "allocated by the driver",
        "cpu": "resident memory of the whole process",
    }
    what = kinds.get(str(section(run.plan, "device").get("kind")))
    return "the highest of all steps" + (f": {what}" if what else "")


def comparable(run: RunFiles) -> dict[str, float]:
    """Step time and peak memory of the last session, as far as they tell how good its plan's
    prediction of them was.

    An earlier session may have had another plan. Without the step time where no more than the first
    steps were timed, where memory ran out and micro-batches became smaller, where torch.compile
    failed, and where batches are as long as their documents.
    """
    session = sessions(run)[-1:]
    steps = [record for records in session for record in records if record.get("kind") == "step"]
    times = [series(_first_group(records)[1], "step_time_s")[1] for records in session]
    found = {"peak_memory_bytes": max(series(steps, "memory_bytes")[1], default=None)}
    if any(times) and _runs_as_planned(run):
        found["step_time_s"] = statistics.median(times[0])
    return {name: value for name, value in found.items() if value is not None}


def _runs_as_planned(run: RunFiles) -> bool:
    packings = [
        choice.get("value")
        for choice in items(run.plan.get("choices"))
        if isinstance(choice, dict) and choice.get("name") == "packing"
    ]
    failed = [
        record
        for record in run.of_kind("event")
        if str(record.get("message")).startswith("torch.compile failed")
    ]
    return "document" not in packings and not failed and not run.of_kind("out_of_memory")


def stage_times_s(run: RunFiles) -> dict[str, float | None]:
    """Seconds by stage, as `measured` names them, over all sessions so far."""
    total_s, training_s = total_time_s(run), training_time_s(run)
    spent = {
        f"{kind}_time_s": sum(series(run.of_kind(kind), "seconds")[1])
        for kind in ("evaluation", "checkpoint")
    }
    rest_s = (
        None
        if total_s is None or training_s is None
        else max(0.0, total_s - training_s - sum(spent.values()))
    )
    return {"training_time_s": training_s, **spent, "start_time_s": rest_s, "total_time_s": total_s}


def _tokens_per_step(run: RunFiles) -> float | None:
    """Positions that a step feeds, padding among them, as the plan counts them; None in a run from
    before they were recorded.
    """
    return number(run.of_kind("start")[-1].get("tokens_per_step")) if run.of_kind("start") else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _scaled(predicted: Json, name: str, factor: float | None) -> float | None:
    value = number(predicted.get(name))
    return None if value is None or factor is None else value * factor


def training_time_s(run: RunFiles) -> float | None:
    """Time spent in optimizer steps alone: each record's step time counts for the steps since the
    record before it.

    What the first steps of a session took longer than the median is compiling and warming up, and
    not counted here.
    """
    spans, usual_s = step_spans(run), steady(run).step_time_s
    if not spans or usual_s is None:
        return None
    return float(sum(count * float(record["step_time_s"]) for count, record in spans)) - warm_up_s(
        run
    )


def step_spans(run: RunFiles) -> list[tuple[int, Json]]:
    """(steps, record that speaks for them): each timed record for the steps since the one before
    it. Steps that a rollback repeats count again.
    """
    records = [
        record for record in run.of_kind("step") if (number(record.get("step_time_s")) or -1.0) >= 0
    ]
    if not records:
        return []
    reached = list(map(_step_of, records))
    counts = [after - before if after > before else 1 for before, after in pairwise([0, *reached])]
    counts[-1] += max(run.last_step, reached[-1]) - reached[-1]
    return list(zip(counts, records, strict=True))


def warm_up_s(run: RunFiles) -> float:
    """What the first steps of every session took longer than steps usually take: compiling,
    allocating, first touches.
    """
    usual_s = steady(run).step_time_s
    return (
        0.0 if usual_s is None else sum(_warm_up_s(session, usual_s) for session in sessions(run))
    )


def losses_by_training_time(run: RunFiles) -> tuple[tuple[float, float], ...]:
    """(seconds of training before it, validation loss) of every evaluation while training; seconds
    as `training_time_s` counts them.
    """
    usual_s = steady(run).step_time_s
    if usual_s is None:
        return ()
    warming_up = {
        id(record)
        for session in sessions(run)
        if all(_first_group(session))
        for record in _first_group(session)[0]
    }
    seconds, reached, step_time_s = 0.0, 0, usual_s
    found: dict[int, tuple[float, float]] = {}
    for record in run.records:
        if record.get("kind") not in ("step", "evaluation"):
            continue
        time_s, loss, step = (
            number(record.get("step_time_s")),
            number(record.get("loss")),
            _step_of(record),
        )
        if record["kind"] == "step" and time_s is not None:
            step_time_s = min(time_s, usual_s) if id(record) in warming_up else time_s
        seconds += max(0, step - reached) * step_time_s
        reached = max(reached, step)
        if record["kind"] == "evaluation" and loss is not None and step >= reached:
            found[step] = (seconds, loss)
    return tuple(found.values())


def _warm_up_s(session: list[Json], usual_s: float) -> float:
    """What the first group of a session took longer than it usually takes; none where there is
    nothing to compare with.
    """
    first, later = _first_group(session)
    return _count(session, first) * max(0.0, first[0]["step_time_s"] - usual_s) if later else 0.0


def sessions(run: RunFiles) -> list[list[Json]]:
    """The records of each session; one that was started again begins with a start record."""
    found: list[list[Json]] = []
    for record in run.records:
        if record.get("kind") == "start" or not found:
            found.append([])
        found[-1].append(record)
    return found


def total_time_s(run: RunFiles) -> float | None:
    """Time spent in all sessions of the run. A killed session counts from its first step to its
    last record.
    """
    seconds = [_session_seconds(session) for session in sessions(run)]
    return sum(seconds) if seconds else None


def _session_seconds(session: list[Json]) -> float:
    ends = [number(record.get("seconds")) for record in session if record.get("kind") == "end"]
    if ends and ends[-1] is not None:
        return ends[-1]
    timed = [
        (place, time)
        for place, record in enumerate(session)
        if (time := number(record.get("time"))) is not None
    ]
    if not timed:
        return 0.0
    first, _ = _first_group(session)
    before_s = _count(session, first) * float(first[0]["step_time_s"]) if first else 0.0
    after_s = sum(
        series(session[timed[-1][0] :], "seconds")[1]
    )  # an evaluation and its checkpoint, which tell no time of day
    return float(before_s + timed[-1][1] - timed[0][1] + after_s)


def counted_parameters(model_folder: Path) -> int | None:
    """Numbers stored in the model's safetensors files (tied weights once, buffers not at all); None
    when there are none to count.
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
