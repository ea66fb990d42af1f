"""The whole run, stage by stage: recipe, hardware, plan, data, model, train, generate, evaluate,
report. Start reading here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from brimful.base.env import runs_folder
from brimful.base.errors import (
    BrimfulError,
    CheckpointError,
    Interrupted,
    RequestError,
    RunFolderError,
    TrainingStopped,
)
from brimful.base.rundir import Lease, write_json_atomically
from brimful.base.units import format_bytes
from brimful.chains.plans import conditions, facts_of, here, kept_traces
from brimful.chains.scoring import (
    discard_scores,
    evaluate,
    evaluate_rest,
    finished_run,
    is_scored,
    refuse_changed_data,
    refuse_unknown_tasks,
    refuse_unreadable_tasks,
)
from brimful.data.formats import Prompt
from brimful.evaluation.diagnose import Finding, diagnose_model
from brimful.evaluation.task import load_task, task_names
from brimful.generation.answers import GenerationRequest, ask, converse, show_before_and_after
from brimful.generation.answers import write as write_text
from brimful.generation.load import load_run, recipe_of
from brimful.generation.sampler import SamplingSettings
from brimful.generation.samples import TextSample
from brimful.hardware.calibration import note_run
from brimful.hardware.device import Device
from brimful.hardware.environment import describe_environment
from brimful.hardware.host import keep_freed_memory
from brimful.hardware.monitor import Monitor
from brimful.hardware.probe import probe, torch_device
from brimful.kinds.run_data import BASE, AnyRunData, gather, plan_of, run_data_class
from brimful.mirror.opening import Mirroring, catch_up, open_mirror
from brimful.model.published import require_nf4
from brimful.planning.budget import sessions
from brimful.planning.choices import EIGHT_BIT_VARIANTS
from brimful.planning.cost import checkpoint_seconds, costed
from brimful.planning.derive import derive, total_steps_of
from brimful.planning.pinned import load_plan, with_choices_of
from brimful.planning.plan import Plan
from brimful.planning.step import EVALUATION_FACTOR
from brimful.recipe import OF_RECIPE, PlanChoices, Recipe
from brimful.recipe import load as load_recipe
from brimful.report.live.progress import data_progress, progress_listener
from brimful.report.live.tensorboard import tensorboard_listener
from brimful.report.page.advice import advice
from brimful.report.page.html import write_report
from brimful.report.plan.budgets import session_lines
from brimful.report.text import evaluation_lines, prediction_lines
from brimful.runs.folder import read_run
from brimful.runs.measurements import comparable
from brimful.training import eight_bit
from brimful.training.admission import Admission, admit, claim, describe, write_status
from brimful.training.checkpoint import CheckpointStore, verify
from brimful.training.deadline import Deadline
from brimful.training.memory_errors import give_back_memory
from brimful.training.recovery import DECIDES_MEMORY
from brimful.training.session import Setup, run_session
from brimful.verify.extract import python_verdict

_DECIDES_PLAN = ("plan.", "batch.", "training.", "optimizer.clip_norm")
"""Fields that may change between sessions and on which the plan depends; of data and model none
may.
"""
_CODE_METRICS = frozenset({"syntax", "pass_at_k"})
"""What only answers in code are measured by."""


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and whether this call did the training."""

    folder: Path
    trained_now: bool


def folder_of(recipe: Recipe) -> Path:
    """Where a recipe keeps its run; a study, its runs."""
    return (Path(recipe.run.folder) if recipe.run.folder else runs_folder()) / recipe.run_name


def run(
    recipe: Recipe,
    console: Console,
    *,
    fresh: bool = False,
    accept: Sequence[str] = (),
    plan_file: Path | None = None,
) -> Path:
    """The whole chain: plan, train, sample, evaluate, report. Returns the report's path."""
    if not is_scored(folder_of(recipe), recipe):
        refuse_unreadable_tasks(recipe)
    trained = train(recipe, console, fresh=fresh, accept=accept, plan_file=plan_file)
    if trained.trained_now:
        console.print(
            "\n".join(evaluation_lines(evaluate(trained.folder, console))),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    else:
        evaluate_rest(trained.folder, trained.folder, recipe, console)
    report = write_report(trained.folder)
    catch_up(recipe, trained.folder, partial(_say, console))
    return report


def train(
    recipe: Recipe,
    console: Console,
    *,
    fresh: bool = False,
    accept: Sequence[str] = (),
    plan_file: Path | None = None,
) -> Run:
    """Train a recipe, or continue its unfinished run, by the saved plan where one is given; ends
    with the exported model and a sample.
    """
    mirror = open_mirror(
        recipe, folder_of(recipe), partial(_say, console), fresh=fresh, accept=accept
    )
    admission = admit(recipe, folder_of(recipe), fresh=fresh, accept=accept)
    if admission.finished:
        console.print(
            f"{admission.folder} is finished; nothing to train.", highlight=False, soft_wrap=True
        )
        return Run(admission.folder, trained_now=False)
    device = here(recipe)
    _refuse_unsupported(recipe, device)
    source = source_of(recipe, console)
    pinned = None if plan_file is None else load_plan(plan_file, recipe, device)
    with kept_traces() as traces:  # what can never fit is refused before any data is read
        derive(
            recipe if pinned is None else with_choices_of(pinned, recipe),
            device,
            traces,
            facts_of(device),
        )
    with claim(admission) as lease, mirror.kept(fresh=fresh):
        _greet(console, recipe, device, admission)
        with data_progress(console) as progress:
            material = gather(recipe, source, progress)
        if admission.continues:
            refuse_changed_data(admission.folder, material)
        console.print("\n".join(material.lines()), highlight=False, markup=False, soft_wrap=True)
        stored = _stored_plan(admission.folder) if admission.continues else None
        plan = _settled_plan(material, device, admission, stored, pinned)
        if stored is not None and (other := _rounded_differently(stored, plan)):
            console.print(
                f"this run goes on by another plan than before ({other}): steps are rounded"
                " differently",
                highlight=False,
                soft_wrap=True,
            )
        console.print(plan.explain(), highlight=False, markup=False, soft_wrap=True)
        _tell_sessions(console, recipe, plan, device)
        try:
            exported_step = _train(material, plan, device, admission, lease, console, mirror)
        except (CheckpointError, Interrupted, TrainingStopped):
            with suppress(RunFolderError):  # on a full disk
                write_status(admission.folder, "stopped", recipe)
            raise
        console.print(
            f"best model: step {exported_step}, saved in {admission.folder / 'model'}",
            highlight=False,
            soft_wrap=True,
        )
        discard_scores(admission.folder)
        # What follows loads the model again, perhaps where training filled the memory.
        give_back_memory(torch_device(device))
        material.finish(admission.folder, plan, console)
        write_status(admission.folder, "finished", recipe)
    _compare(console, admission.folder)
    _remember(console, admission.folder, plan)
    return Run(admission.folder, trained_now=True)


def _train(
    material: AnyRunData,
    plan: Plan,
    device: Device,
    admission: Admission,
    lease: Lease,
    console: Console,
    mirror: Mirroring,
) -> int:
    """One session; returns the step of the exported model. Nothing of it is left in memory.

    The folder is the recipe's run only once its model could be made: what is wrong with that is
    mended under the same name.
    """
    folder = admission.folder
    setup = _setup(material, plan, device, folder, lease)
    describe(admission, material.recipe)
    _write_facts(folder, plan, device, material, setup.identity)
    with (
        _listeners(console, folder, plan) as listeners,
        Monitor(folder, device, say=partial(_say, console)),
    ):
        return run_session(
            replace(
                setup, listeners=[*listeners, *mirror.listeners()], copy_s=mirror.seconds_to_durable
            )
        ).exported_step


def _say(console: Console, note: str) -> None:
    console.print(note, highlight=False, markup=False, soft_wrap=True)


class Writer:
    """A finished run's model, loaded once, that continues prompts, or answers them as it was tuned
    to.
    """

    def __init__(
        self,
        run_folder: Path,
        settings: SamplingSettings,
        *,
        tokens: int = 200,
        count: int = 1,
        seed: int = 0,
    ) -> None:
        self._loaded = load_run(run_folder, torch_device(probe("auto")), torch.float32)
        self._how = GenerationRequest(settings, tokens, count, seed)

    def write(self, prompt: Prompt, show: Callable[[str], None] | None = None) -> list[TextSample]:
        """Continue one prompt, text or messages; `show` receives the text as it comes when one
        sample was asked for.
        """
        return self._how.draw(self._loaded, prompt, show)


def write(
    run_folder: Path,
    prompt: str | None,
    how: GenerationRequest,
    console: Console,
    *,
    beside_base: bool = False,
    code: bool | None = None,
) -> None:
    """Print what a finished run's model makes of a prompt; without one, of all that is typed.

    Args:
        beside_base: Beside what the model made of it before it was tuned.
        code: Say of every answer whether it is Python; None: where a task of the recipe is about
            code.
    """
    tasks = recipe_of(run_folder).evaluation.tasks
    how = replace(
        how, judge=python_verdict if code or (code is None and _are_about_code(tasks)) else None
    )
    device = torch_device(probe("auto"))
    if not beside_base:
        loaded = load_run(run_folder, device, torch.float32)
        loaded.refuse_where_it_writes_nothing()
        converse(loaded, how, ask) if prompt is None else write_text(loaded, prompt, how)
    elif prompt is None:
        raise RequestError("--beside-base compares answers to one prompt. Add --prompt TEXT.")
    else:
        show_before_and_after(console, run_folder, device, prompt, how)


def diagnose(run_folder: Path, console: Console) -> list[Finding]:
    """Look at tokenizer, checkpoints, parameters, loss against counting baselines, a sample, and
    into layers of kernel attention and feedback.

    Raises:
        RequestError: the run's model does not continue text from nothing.
    """
    recipe = recipe_of(run_folder)
    if not recipe.kind.continues_text:
        raise RequestError(
            f"{run_folder.name} is a run of method {recipe.method}; diagnose looks at models that learned"
            " to continue text from nothing."
        )
    run = finished_run(run_folder, console)
    with data_progress(console) as progress:
        store = CheckpointStore(run_folder / "checkpoints", keep=2)
        folders = [store.path_of(step) for step in store.steps()]
        return diagnose_model(
            run.loaded,
            run.data.splits["train"],
            run.data.splits["validation"],
            chunk_tokens=run.plan.loss_chunk,
            verify_checkpoint=verify,
            checkpoint_folders=folders,
            progress=progress,
        )


def _refuse_unsupported(recipe: Recipe, device: Device) -> None:
    """Say before anything is read what this machine cannot do, and what is asked for that there is
    not.
    """
    refuse_unknown_tasks(recipe)
    if not recipe.kind.tunes_published_model:
        _ = recipe.fresh_model
    if recipe.quantize == "nf4":
        require_nf4(torch_device(device))
    if recipe.optimizer.kind != "adamw":
        eight_bit.require(EIGHT_BIT_VARIANTS[recipe.optimizer.kind][0], device.kind)


def source_of(recipe: Recipe, console: Console) -> str:
    """Hub id or absolute folder of the recipe's published model; what another recipe trains is
    trained first. Empty for a fresh model.
    """
    if not isinstance(recipe.model, str):
        return ""
    if not recipe.model.startswith(OF_RECIPE):
        return str(Path(recipe.model).resolve()) if Path(recipe.model).is_dir() else recipe.model
    with data_progress(console) as progress:
        named = load_recipe(recipe.model.removeprefix(OF_RECIPE))
        first = run_data_class(recipe.kind).base_recipe(named, recipe, progress)
    first = first.model_copy(
        update={"run": recipe.run.beside(first.run.name), "plan": _same_place(recipe, first)}
    )
    return str((train(first, console).folder / "model").resolve())


def _same_place(recipe: Recipe, first: Recipe) -> PlanChoices:
    return first.plan.model_copy(
        update={"device": recipe.plan.device, "threads": recipe.plan.threads}
    )


def _settled_plan(
    material: AnyRunData,
    device: Device,
    admission: Admission,
    stored: Plan | None,
    pinned: Plan | None,
) -> Plan:
    """The plan with the data known. A continued run keeps its old plan, so that it goes on bit for
    bit, unless something asks for a new one.

    A plan from a file is used as it is; where it counts examples as full sequences, all it decided
    is kept and its figures are made anew.
    """
    if pinned is not None and material.planned is material.recipe:
        return pinned
    recipe = material.planned if pinned is None else with_choices_of(pinned, material.planned)
    with kept_traces() as traces:
        derived = derive(
            recipe,
            device,
            traces,
            facts_of(
                device, vocabulary=len(material.tokenizer), train_sequences=material.train_rows
            ),
        )
    conditions_now = replace(
        conditions(device),
        train_sequences=material.train_rows,
        validation_sequences=material.validation_rows,
    )
    asked_for = any(change.startswith(_DECIDES_PLAN) for change in admission.changed)
    if (
        pinned is not None
        or stored is None
        or asked_for
        or stored.device["name"] != device.name
        or stored.threads != derived.threads
    ):
        return costed(recipe, derived, conditions_now)
    return costed(recipe, stored, conditions_now) if admission.changed else stored


def _tell_sessions(console: Console, recipe: Recipe, plan: Plan, device: Device) -> None:
    """When this session ends, and how many such the whole run takes by the plan."""
    session_s = recipe.run.session_s
    if session_s is None:
        return
    lines = [f"{Deadline.of_process(session_s).describe()}; the last checkpoint comes before it"]
    if "training_time_s" in plan.predicted:
        try:
            lines += session_lines(
                sessions(
                    session_s,
                    plan.predicted,
                    checkpoint_seconds(recipe, plan, conditions(device)).value,
                )
            )
        except RequestError as error:
            lines.append(f"note: {error}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _stored_plan(run_folder: Path) -> Plan | None:
    """The plan of a run's last session; None where that ended before it had one."""
    return plan_of(run_folder) if (run_folder / "plan.json").exists() else None


def _rounded_differently(before: Plan, now: Plan) -> str:
    """What differs of that which decides how a step is rounded: `precision fp32 -> bf16`; nothing
    where the run goes on bit for bit.
    """

    def deciding(plan: Plan) -> dict[str, Any]:
        passes = f"{len(plan.micro_batches)} of up to {plan.micro_batches[0]}"
        known = {name: getattr(plan, name) for name in DECIDES_MEMORY}
        return {
            "device": plan.device["name"],
            "threads": plan.threads,
            **known,
            "micro_batches": passes,
        }

    old, new = deciding(before), deciding(now)
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name])


def _setup(material: AnyRunData, plan: Plan, device: Device, folder: Path, lease: Lease) -> Setup:
    where, recipe = torch_device(device), material.recipe
    if plan.threads:
        torch.set_num_threads(plan.threads)
        keep_freed_memory()
    model = material.build(plan, where)
    rows = [EVALUATION_FACTOR * plan.micro_batches[0]]

    def score(current: PreTrainedModel) -> dict[str, Any]:
        record = material.validate(current, plan, where, rows=rows[-1])
        sizes = record["batch_sizes"]
        rows[:] = [
            max(1, rows[-1] * sizes[-1] // sizes[0])
        ]  # what fitted holds for the next evaluation
        return {"split": "validation", **record}

    total_steps = plan.total_steps or total_steps_of(material.planned, material.train_rows) or 1
    session_s = recipe.run.session_s
    return Setup(
        recipe=recipe,
        plan=plan,
        total_steps=total_steps,
        device=where,
        model=model,
        tokenizer=material.tokenizer,
        sequences=material.sequences(plan),
        evaluate=score,
        identity=material.identity(model),
        run_folder=folder,
        lease=lease,
        listeners=(),
        tokens_per_step=material.tokens_per_step,
        deadline=None if session_s is None else Deadline.of_process(session_s),
    )


@contextmanager
def _listeners(console: Console, folder: Path, plan: Plan) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        planned = {name: prediction.value for name, prediction in plan.predicted.items()}
        shown = stack.enter_context(progress_listener(console, planned=planned))
        written = stack.enter_context(
            tensorboard_listener(
                folder, lambda note: console.print(note, highlight=False, soft_wrap=True)
            )
        )
        yield [shown, written]


def _compare(console: Console, folder: Path) -> None:
    """Tell what was predicted beside what came true, and what would have made it faster."""
    lines = [
        *prediction_lines(folder),
        *(f"advice: {told}" for told in advice(read_run(folder))),
    ]
    console.print("\n" + "\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _remember(console: Console, folder: Path, plan: Plan) -> None:
    """Keep what came true for later plans on this device; failing at that fails no run."""
    predicted = {name: prediction.value for name, prediction in plan.predicted.items()}
    try:
        note_run(
            str(plan.device["name"]),
            measured=comparable(read_run(folder)),
            predicted=predicted,
            key=plan.recipe,
            applied={"step_time_s": plan.correction},
            basis=plan.rates_basis,
        )
    except (BrimfulError, OSError) as error:
        console.print(
            f"note: this run's figures are not remembered for later plans: {error}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _are_about_code(tasks: Sequence[str]) -> bool:
    return any(
        _CODE_METRICS.intersection(load_task(name).metrics)
        for name in set(tasks).intersection(task_names())
    )


def _write_facts(
    folder: Path, plan: Plan, device: Device, material: AnyRunData, identity: Mapping[str, str]
) -> None:
    write_json_atomically(folder / "plan.json", plan.to_json())
    write_json_atomically(folder / "environment.json", describe_environment(device))
    base = (
        {"base": {"source": material.source, "fingerprint": identity[BASE]}}
        if material.source
        else {}
    )
    fingerprints = dict(material.fingerprints)
    write_json_atomically(
        folder / "data.json", {**material.report, "fingerprints": fingerprints, **base}
    )


def _greet(console: Console, recipe: Recipe, device: Device, admission: Admission) -> None:
    free = f", {format_bytes(device.free_memory_bytes)} free" if device.free_memory_bytes else ""
    threads = f", {device.threads} threads" if device.threads else ""
    rates = "".join(
        f", {dtype} {rate / 1e9:,.0f} GFLOP/s" for dtype, rate in device.dense_flop_per_s.items()
    )
    console.print(
        f"{recipe.name}: {recipe.description}" if recipe.description else recipe.name,
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"machine: {device.name}{threads}{free}{rates}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if admission.moved_aside:
        console.print(
            f"the unfinished run was moved to {admission.moved_aside}",
            highlight=False,
            soft_wrap=True,
        )
    for change in admission.changed:
        console.print(
            f"changed since the last session: {change}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
