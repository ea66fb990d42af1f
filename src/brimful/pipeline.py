"""The whole run, stage by stage: recipe, hardware, plan, data, model, train, generate, evaluate, report. Start reading here."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from brimful.base.env import cache_folder, runs_folder
from brimful.base.errors import BrimfulError, Interrupted, PlanError, RequestError, RunFolderError, TrainingStopped
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.units import format_bytes
from brimful.data.prepare import PreparedData, prepare
from brimful.data.sequences import Sequences
from brimful.evaluation.baselines import ngram_baselines
from brimful.evaluation.diagnose import Finding, diagnose_model
from brimful.evaluation.likelihood import score_split
from brimful.generation.load import LoadedRun, load_run
from brimful.generation.sampler import SamplingSettings
from brimful.generation.samples import Sample, draw_samples, write_samples
from brimful.hardware.calibration import note_run
from brimful.hardware.device import Device
from brimful.hardware.environment import describe_environment
from brimful.hardware.host import keep_freed_memory
from brimful.hardware.probe import probe, torch_device
from brimful.model.build import build
from brimful.planning.cost import costed
from brimful.planning.derive import derive, total_steps_of
from brimful.planning.pinned import load_plan, with_choices_of
from brimful.planning.plan import Plan, plan_from_json
from brimful.planning.step import EVALUATION_FACTOR
from brimful.plans import conditions, facts_of, here, kept_traces
from brimful.recipe import Recipe
from brimful.report.html import write_report
from brimful.report.progress import data_progress, progress_listener
from brimful.report.runfiles import comparable, read_run
from brimful.report.tensorboard import tensorboard_listener
from brimful.report.text import prediction_lines
from brimful.training.admission import Admission, admit, claim, describe, write_status
from brimful.training.checkpoint import CheckpointStore, verify
from brimful.training.precision import Precision
from brimful.training.recovery import DECIDES_MEMORY
from brimful.training.session import Setup, run_session

_DECIDES_PLAN = ("plan.", "batch.", "training.", "optimizer.clip_norm")
"""Fields that may change between sessions and on which the plan depends; of data and model none may."""


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and whether this call did the training."""

    folder: Path
    trained_now: bool


def run(recipe: Recipe, console: Console, *, fresh: bool = False, accept: Sequence[str] = (), plan_file: Path | None = None) -> Path:
    """The whole chain: plan, train, sample, evaluate, report. Returns the report's path."""
    trained = train(recipe, console, fresh=fresh, accept=accept, plan_file=plan_file)
    if trained.trained_now or not (trained.folder / "scores.json").exists():
        evaluate(trained.folder, console)
    return write_report(trained.folder)


def train(recipe: Recipe, console: Console, *, fresh: bool = False, accept: Sequence[str] = (), plan_file: Path | None = None) -> Run:
    """Train a recipe, or continue its unfinished run, by the saved plan where one is given; ends with the exported model and a sample."""
    folder = Path(recipe.run.folder) if recipe.run.folder else runs_folder()
    admission = admit(recipe, folder / recipe.run_name, fresh=fresh, accept=accept)
    if admission.finished:
        console.print(
            f"{admission.folder} is finished; nothing to train. For another run of this recipe: run.name={recipe.run_name}-2",
            highlight=False,
            soft_wrap=True,
        )
        return Run(admission.folder, trained_now=False)
    device = here(recipe)
    pinned = None if plan_file is None else load_plan(plan_file, recipe, device)
    with kept_traces() as traces:  # what can never fit is refused before any data is read
        derive(recipe if pinned is None else with_choices_of(pinned, recipe), device, traces, facts_of(device))
    with claim(admission) as lease:
        _greet(console, recipe, device, admission)
        with data_progress(console) as progress:
            data = prepare(recipe, cache_folder(), progress)
        if admission.continues:
            _refuse_changed_data(admission.folder, data)
        _tell_data(console, data)
        stored = _stored_plan(admission.folder) if admission.continues else None
        sequences = _sequences(recipe, data)
        plan = _settled_plan(recipe, device, data, len(sequences), admission, stored) if pinned is None else pinned
        if stored is not None and (other := _rounded_differently(stored, plan)):
            console.print(f"this run goes on by another plan than before ({other}): steps are rounded differently", highlight=False, soft_wrap=True)
        describe(admission, recipe)
        console.print(plan.explain(), highlight=False, markup=False, soft_wrap=True)
        _write_facts(admission.folder, plan, device, data)
        try:
            with _listeners(console, admission.folder, plan) as listeners:
                outcome = run_session(_setup(recipe, plan, device, data, sequences, admission.folder, lease, listeners))
        except (Interrupted, TrainingStopped):
            write_status(admission.folder, "stopped", recipe)
            raise
        console.print(f"best model: step {outcome.exported_step}, saved in {admission.folder / 'model'}", highlight=False, soft_wrap=True)
        write_samples(admission.folder, _sample(admission.folder, recipe, plan, console))
        write_status(admission.folder, "finished", recipe)
    _compare(console, admission.folder)
    _remember(console, admission.folder, plan)
    return Run(admission.folder, trained_now=True)


def evaluate(run_folder: Path, console: Console, *, split: str | None = None, stride: int | None = None) -> Mapping[str, Any]:
    """Score a finished run on its whole validation and test splits (or the one named) and write scores.json."""
    with _finished_run(run_folder, console) as (loaded, data, device):
        names = [split] if split else [name for name in ("validation", "test") if name in data.splits]
        if unknown := [name for name in names if name not in data.splits]:
            raise RequestError(f"{run_folder} has no split {unknown[0]!r}; it has {', '.join(data.splits)}.")
        context, plan = loaded.recipe.sequence_length, _plan_of(run_folder)
        made: dict[str, Any] = {}
        scores: dict[str, Any] = read_json(run_folder / "scores.json") if (run_folder / "scores.json").exists() else {}
        with data_progress(console) as progress:
            for name in names:
                score = score_split(
                    loaded.model, data.splits[name], context=context, stride=stride, batch_size=EVALUATION_FACTOR * plan.micro_batches[0],
                    chunk_tokens=plan.loss_chunk, device=device, progress=progress,
                )  # fmt: skip
                baselines = ngram_baselines(data.splits["train"], data.splits[name], len(data.tokenizer))
                label = name if stride is None else f"{name}, stride {stride}"
                made[label] = {**score.to_json(), "baselines": baselines.to_json()}
        write_json_atomically(run_folder / "scores.json", scores | made)
    return made


class Writer:
    """A finished run's model, loaded once, that continues prompts."""

    def __init__(self, run_folder: Path, settings: SamplingSettings, *, tokens: int = 200, count: int = 1, seed: int = 0) -> None:
        self._loaded = load_run(run_folder, torch_device(probe("auto")), torch.float32)
        self._settings, self._tokens, self._count, self._seed = settings, tokens, count, seed

    def write(self, prompt: str, show: Callable[[str], None] | None = None) -> list[Sample]:
        """Continue one prompt; `show` receives the text as it comes when one sample was asked for."""
        return draw_samples(self._loaded, prompt, self._settings, max_new_tokens=self._tokens, count=self._count, seed=self._seed, show=show)


def diagnose(run_folder: Path, console: Console) -> list[Finding]:
    """Look at tokenizer, checkpoints, parameters, loss against counting baselines, and a sample."""
    with _finished_run(run_folder, console) as (loaded, data, _), data_progress(console) as progress:
        store = CheckpointStore(run_folder / "checkpoints", keep=2)
        folders = [store.path_of(step) for step in store.steps()]
        return diagnose_model(
            loaded, data.splits["train"], data.splits["validation"], chunk_tokens=_plan_of(run_folder).loss_chunk,
            verify_checkpoint=verify, checkpoint_folders=folders, progress=progress,
        )  # fmt: skip


def _sequences(recipe: Recipe, data: PreparedData) -> Sequences:
    return Sequences(data.splits["train"], recipe.sequence_length, recipe.data.layout, recipe.data.long_documents, recipe.seed)


def _settled_plan(recipe: Recipe, device: Device, data: PreparedData, train_sequences: int, admission: Admission, stored: Plan | None) -> Plan:
    """The plan with the data known. A continued run keeps its old plan, so that it goes on bit for bit, unless something asks for a new one."""
    with kept_traces() as traces:
        derived = derive(recipe, device, traces, facts_of(device, vocabulary=len(data.tokenizer), train_sequences=train_sequences))
    validation_sequences = -(-data.splits["validation"].num_tokens // recipe.sequence_length)
    conditions_now = replace(conditions(device), train_sequences=train_sequences, validation_sequences=validation_sequences)
    asked_for = any(change.startswith(_DECIDES_PLAN) for change in admission.changed)
    if stored is None or asked_for or stored.device["name"] != device.name or stored.threads != derived.threads:
        return costed(recipe, derived, conditions_now)
    return costed(recipe, stored, conditions_now) if admission.changed else stored


def _stored_plan(run_folder: Path) -> Plan | None:
    """The plan of a run's last session; None where that ended before it had one."""
    return _plan_of(run_folder) if (run_folder / "plan.json").exists() else None


def _plan_of(run_folder: Path) -> Plan:
    path = run_folder / "plan.json"
    try:
        return plan_from_json(read_json(path))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _rounded_differently(before: Plan, now: Plan) -> str:
    """What differs of that which decides how a step is rounded: `precision fp32 -> bf16`; nothing where the run goes on bit for bit."""

    def deciding(plan: Plan) -> dict[str, Any]:
        passes = f"{len(plan.micro_batches)} of up to {plan.micro_batches[0]}"
        known = {name: getattr(plan, name) for name in DECIDES_MEMORY}
        return {"device": plan.device["name"], "threads": plan.threads, **known, "micro_batches": passes}

    old, new = deciding(before), deciding(now)
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name])


def _setup(recipe: Recipe, plan: Plan, device: Device, data: PreparedData, sequences: Sequences, folder: Path, lease: Any, listeners: Any) -> Setup:
    where = torch_device(device)
    if plan.threads:
        torch.set_num_threads(plan.threads)
        keep_freed_memory()
    model = build(recipe, vocabulary=len(data.tokenizer), end_of_text_id=int(data.tokenizer.eos_token_id), attention=plan.attention, device=where)
    batch_sizes = [EVALUATION_FACTOR * plan.micro_batches[0]]

    def score(current: PreTrainedModel) -> dict[str, Any]:
        likelihood = score_split(
            current, data.splits["validation"], context=recipe.sequence_length, batch_size=batch_sizes[-1], chunk_tokens=plan.loss_chunk, device=where, autocast_dtype=Precision(plan.precision).autocast_dtype,
            max_sequences=recipe.evaluation.max_sequences,
        )  # fmt: skip
        batch_sizes[:] = likelihood.batch_sizes  # what fitted holds for the next evaluation
        kept = ("loss", "perplexity", "bits_per_byte", "tokens", "seconds", "batch_sizes")
        return {"split": "validation", **{key: value for key, value in likelihood.to_json().items() if key in kept}}

    return Setup(
        recipe=recipe, plan=plan, total_steps=plan.total_steps or total_steps_of(recipe, len(sequences)) or 1, device=where, model=model,
        tokenizer=data.tokenizer, sequences=sequences, evaluate=score, identity=_identity(recipe, data), run_folder=folder, lease=lease, listeners=listeners,
    )  # fmt: skip


def _identity(recipe: Recipe, data: PreparedData) -> dict[str, str]:
    objective = {
        "method": recipe.method,
        "sequence_length": recipe.sequence_length,
        "layout": recipe.data.layout,
        "model": recipe.fresh_model.model_dump(),
    }
    digest = hashlib.sha256(json.dumps(objective, sort_keys=True).encode()).hexdigest()[:16]
    return {"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint, "objective": digest}


@contextmanager
def _listeners(console: Console, folder: Path, plan: Plan) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        planned = {name: prediction.value for name, prediction in plan.predicted.items()}
        shown = stack.enter_context(progress_listener(console, planned=planned))
        written = stack.enter_context(tensorboard_listener(folder, lambda note: console.print(note, highlight=False, soft_wrap=True)))
        yield [shown, written]


def _compare(console: Console, folder: Path) -> None:
    """Tell what was predicted beside what came true."""
    console.print("\n" + "\n".join(prediction_lines(folder)), highlight=False, markup=False, soft_wrap=True)


def _remember(console: Console, folder: Path, plan: Plan) -> None:
    """Keep what came true for later plans on this device; failing at that fails no run."""
    predicted = {name: prediction.value for name, prediction in plan.predicted.items()}
    try:
        note_run(
            str(plan.device["name"]), measured=comparable(read_run(folder)), predicted=predicted, key=plan.recipe,
            applied={"step_time_s": plan.correction}, basis=plan.rates_basis,
        )  # fmt: skip
    except (BrimfulError, OSError) as error:
        console.print(f"note: this run's figures are not remembered for later plans: {error}", highlight=False, markup=False, soft_wrap=True)


def _sample(folder: Path, recipe: Recipe, plan: Plan, console: Console) -> list[Sample]:
    loaded = load_run(folder, torch.device(str(plan.device["kind"])), torch.float32)
    console.print(f"sample after {recipe.sample.prompt!r}:", highlight=False, soft_wrap=True)
    settings = SamplingSettings.from_recipe(recipe.sample)

    def show(text: str) -> None:
        console.print(text, end="", highlight=False, markup=False, soft_wrap=True)

    show(recipe.sample.prompt)
    samples = draw_samples(loaded, recipe.sample.prompt, settings, max_new_tokens=recipe.sample.tokens, count=1, seed=recipe.seed, show=show)
    console.print()
    return samples


@contextmanager
def _finished_run(run_folder: Path, console: Console) -> Iterator[tuple[LoadedRun, PreparedData, torch.device]]:
    """A run's model and the very tokens it was trained and validated on."""
    device = torch_device(probe("auto"))
    loaded = load_run(run_folder, device, torch.float32)
    with data_progress(console) as progress:
        data = prepare(loaded.recipe, cache_folder(), progress)
    _refuse_changed_data(run_folder, data)
    yield loaded, data, device


def _refuse_changed_data(run_folder: Path, data: PreparedData) -> None:
    path = run_folder / "data.json"
    stored = read_json(path).get("fingerprints", {}) if path.exists() else {}
    for name, now in (("data", data.data_fingerprint), ("tokenizer", data.tokenizer_fingerprint)):
        if stored.get(name, now) != now:
            raise RunFolderError(
                f"the {name} of {run_folder} changed since it was trained on (fingerprint {stored[name]}, now {now}). "
                "Put the old one back, start over with --fresh, or start a new run with run.name=NAME."
            )


def _write_facts(folder: Path, plan: Plan, device: Device, data: PreparedData) -> None:
    write_json_atomically(folder / "plan.json", plan.to_json())
    write_json_atomically(folder / "environment.json", describe_environment(device))
    fingerprints = {"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint}
    write_json_atomically(folder / "data.json", {**data.report, "fingerprints": fingerprints})


def _tell_data(console: Console, data: PreparedData) -> None:
    for name, split in data.splits.items():
        told = f"{name}: {split.num_documents:,} documents, {format_bytes(split.num_bytes)}, {split.num_tokens:,} tokens"
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    tokenizer = data.tokenizer_report
    told = f"{tokenizer.characters_per_token:.2f} characters and {tokenizer.bytes_per_token:.2f} bytes per token on validation text ({tokenizer.verdict})"
    console.print(f"tokenizer: {tokenizer.kind}, {tokenizer.vocabulary:,} entries, {told}", highlight=False, markup=False, soft_wrap=True)
    for note in data.report.get("notes", []):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _greet(console: Console, recipe: Recipe, device: Device, admission: Admission) -> None:
    free = f", {format_bytes(device.free_memory_bytes)} free" if device.free_memory_bytes else ""
    threads = f", {device.threads} threads" if device.threads else ""
    rates = "".join(f", {dtype} {rate / 1e9:,.0f} GFLOP/s" for dtype, rate in device.dense_flop_per_s.items())
    console.print(f"{recipe.name}: {recipe.description}" if recipe.description else recipe.name, highlight=False, markup=False, soft_wrap=True)
    console.print(f"machine: {device.name}{threads}{free}{rates}", highlight=False, markup=False, soft_wrap=True)
    if admission.moved_aside:
        console.print(f"the unfinished run was moved to {admission.moved_aside}", highlight=False, soft_wrap=True)
    for change in admission.changed:
        console.print(f"changed since the last session: {change}", highlight=False, markup=False, soft_wrap=True)
