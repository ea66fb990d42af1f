"""One session of training: the model is built, facts are written, listeners are attached."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from brimful.base.console import Say, console_printer, waiting
from brimful.base.errors import CheckpointError, Interrupted, RunFolderError, TrainingStopped
from brimful.base.rundir import Lease, write_journal_atomically, write_json_atomically
from brimful.base.types import JsonDict, Progress, Texts
from brimful.chains.checks import changed_versions, describe_changes
from brimful.hardware.device import Device
from brimful.hardware.environment import describe_environment
from brimful.hardware.host import keep_freed_memory, stop_keeping_freed_memory
from brimful.hardware.monitor import Monitor
from brimful.hardware.probe import torch_device
from brimful.hardware.process_memory import give_back_free_memory
from brimful.kinds.run_data import BASE, START, AnyRunData, ScoringOptions
from brimful.mirror.mirroring import Mirroring
from brimful.model.published import refuse_broken_weights
from brimful.planning.derive import total_steps_of
from brimful.planning.plan import Plan
from brimful.planning.rounds import seconds_of_round
from brimful.planning.step import EVALUATION_FACTOR
from brimful.recipe import Recipe
from brimful.report.live.logger import LoggedRun, logging_listener
from brimful.report.live.progress import data_progress, progress_listener
from brimful.runs.deciding import ADAPTERS
from brimful.runs.files import BAD_ROWS_FILE
from brimful.training.admission import Admission, describe, run_id_of, write_status
from brimful.training.memory_errors import RememberedSizes
from brimful.training.session import run_session
from brimful.training.setup import BaseComparison, Deadline, Setup
from brimful.training.world import ALONE, World


def train_session(
    data: AnyRunData,
    plan: Plan,
    device: Device,
    admission: Admission,
    lease: Lease,
    console: Console,
    mirror: Mirroring,
    world: World = ALONE,
) -> int:
    """Train until the run ends; return the step of the exported model. Nothing of the session is
    left in memory.

    The folder is described as the recipe's run only once its model could be built, so that a
    mistake in the recipe can be corrected under the same name.
    """
    folder, say = admission.folder, console_printer(console)
    with _stop_recorded(folder, data.recipe):
        with waiting(console, "loading the model" if data.source else "making the model"):
            setup = world.check(lambda: _setup(data, plan, device, folder, lease, world))
        if admission.continues:
            setup = replace(setup, note=describe_changes(changed_versions(folder, device)))
        describe(admission, data.recipe)
        _write_facts(folder, plan, device, data, setup.identity)
        with data_progress(console) as progress:
            setup = _with_reference(data, setup, progress)
        showing = _listeners(console, say, folder, data.recipe, plan)
        with showing as shown, Monitor(folder, device, say=say):
            listeners = [*shown, *mirror.listeners()]
            setup = replace(setup, listeners=listeners, copy_s=mirror.seconds_to_durable)
            return run_session(setup).exported_step


def follow_session(
    data: AnyRunData, plan: Plan, device: Device, folder: Path, world: World
) -> None:
    """Train beside rank 0, in the session that it writes into the run folder."""
    setup = world.check(lambda: _setup(data, plan, device, folder, None, world))
    run_session(_with_reference(data, setup, None))


def _with_reference(data: AnyRunData, setup: Setup, progress: Progress | None) -> Setup:
    rows = EVALUATION_FACTOR * setup.plan.micro_batches[0]
    options = ScoringOptions(
        plan=setup.plan, device=setup.device, rows=rows, progress=progress, world=setup.world
    )
    kept = data.keep_reference(setup.model, setup.run_folder, setup.identity, options)
    return replace(setup, reference=kept)


@contextmanager
def _stop_recorded(folder: Path, recipe: Recipe) -> Iterator[None]:
    """Write the status "stopped" if the training is stopped or interrupted."""
    try:
        yield
    except (CheckpointError, Interrupted, TrainingStopped):
        with suppress(RunFolderError):  # the disk may be full
            write_status(folder, "stopped", recipe)
        raise


def _setup(
    data: AnyRunData,
    plan: Plan,
    device: Device,
    folder: Path,
    lease: Lease | None,
    world: World,
) -> Setup:
    where, recipe = torch_device(device), data.recipe
    if plan.threads:
        torch.set_num_threads(plan.threads)
    stop_keeping_freed_memory()
    is_sharded = not world.is_alone and plan.lies_in_parts
    host = torch.device("cpu")
    model = data.build(plan, host if is_sharded else where)
    if data.source:
        refuse_broken_weights(model, data.source)
    if plan.threads:
        give_back_free_memory()
        keep_freed_memory()
    fitting = RememberedSizes.of(folder, plan).evaluation_share
    rows = max(1, int(EVALUATION_FACTOR * plan.micro_batches[0] * fitting))

    def score(current: PreTrainedModel) -> JsonDict:
        nonlocal rows
        record = data.validate(current, plan, where, rows=rows)
        # The next evaluation begins with the batch size that fitted in this one.
        sizes = record["batch_sizes"]
        rows = max(1, rows * sizes[-1] // sizes[0])
        return {"split": "validation", **record}

    session_s = recipe.run.session_s
    return Setup(
        recipe=recipe,
        plan=plan,
        total_steps=plan.total_steps or total_steps_of(data.planned, data.train_rows) or 1,
        device=where,
        model=model,
        tokenizer=data.tokenizer,
        sequences=data.sequences(plan),
        evaluate=score,
        identity=data.identity(model),
        run_folder=folder,
        lease=lease,
        listeners=(),
        tokens_per_step=data.tokens_computed(where.type),
        deadline=None if session_s is None else Deadline.of_process(session_s),
        base=None if is_sharded else _base_comparison(data, plan, where),
        world=world,
        rebuild=lambda: data.build(plan, host),
        draw=data.draw if recipe.kind.draws_answers else None,
    )


def _base_comparison(data: AnyRunData, plan: Plan, where: torch.device) -> BaseComparison | None:
    """Return how the model is scored before its first step; None where the plan leaves it out."""
    if plan.base is None or not plan.base.loss_share:
        return None
    rows, share = EVALUATION_FACTOR * plan.micro_batches[0], plan.base.loss_share

    def score(current: PreTrainedModel) -> JsonDict:
        record = data.validate_share(current, plan, where, rows=rows, share=share)
        return {"split": "validation", **record}

    return BaseComparison(score, share, data.recipe.evaluation.max_sequences)


def _write_facts(
    folder: Path, plan: Plan, device: Device, data: AnyRunData, identity: Texts
) -> None:
    """Write plan.json, environment.json and data.json, and the rows that were left out."""
    write_json_atomically(folder / "plan.json", plan.to_json(), with_checksum=True)
    write_json_atomically(
        folder / "environment.json", describe_environment(device), with_checksum=True
    )
    facts = {**data.report, "fingerprints": dict(data.fingerprints)}
    if bad_rows := facts.pop("bad_rows", []):
        write_journal_atomically(folder / BAD_ROWS_FILE, bad_rows)
    if data.source:
        from brimful.model.obtained import origin_of  # noqa: PLC0415 - for published models

        facts["base"] = {"source": data.source, "fingerprint": identity[BASE]}
        if origin := origin_of(data.source):
            facts["base"]["origin"] = origin.to_json()
        if START in identity:
            facts["base"][ADAPTERS] = identity[START]
    write_json_atomically(folder / "data.json", facts, with_checksum=True)


@contextmanager
def _listeners(
    console: Console, say: Say, folder: Path, recipe: Recipe, plan: Plan
) -> Iterator[list[Any]]:
    """Show progress on the console and hand it to the recipe's loggers."""
    planned = {name: prediction.value for name, prediction in plan.predicted.items()}
    planned |= seconds_of_round(recipe, plan)
    starting = "compiling" if plan.compile else ""
    run = LoggedRun(
        folder=folder.absolute(),
        run_id=run_id_of(folder) or folder.name,
        project=recipe.run.project,
        settings=recipe.model_dump(mode="json"),
    )
    with (
        progress_listener(console, planned=planned, starting=starting) as shown,
        logging_listener(recipe.run.loggers, run, say) as logged,
    ):
        yield [shown, logged]
