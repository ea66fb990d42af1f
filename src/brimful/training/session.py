"""One training session of a run: resume from the newest checkpoint, run the loop, export the best
model.
"""

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.errors import (
    CheckpointError,
    Interrupted,
    RequestError,
    SessionOver,
)
from brimful.base.rundir import Journal, Lease, read_journal
from brimful.base.watchdog import Watchdog
from brimful.data.batches import MicroBatch
from brimful.hardware.process_memory import give_back_free_memory, unmapped_bytes
from brimful.model.registered import step_hooks_of
from brimful.planning.plan import Plan
from brimful.planning.spacing import CHECKPOINT_AFTER_S, MOST_CHECKPOINT_SHARE, interval
from brimful.recipe import Recipe
from brimful.runs.deciding import lost_records, num_records_of, texts_of
from brimful.runs.files import JOURNAL_FILE, MODEL_FOLDER
from brimful.runs.records import BASE_MODEL, TUNED_MODEL
from brimful.training.base_comparison import BaseComparison
from brimful.training.checkpoint import CheckpointStore, Loaded, load
from brimful.training.deadline import Deadline
from brimful.training.export import export_model
from brimful.training.loader import measure_loader
from brimful.training.loop import Parts, Sequences, evaluation_is_due, is_exhausted, train
from brimful.training.meter import Listener, Meter
from brimful.training.method import HiddenStates, Network, compiled, find_method, hidden_states_of
from brimful.training.optim import build_optimizer
from brimful.training.pace import (
    BASE,
    BATCH,
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    STEP,
    expected_seconds,
    with_start,
)
from brimful.training.precision import Precision
from brimful.training.recovery import RememberedSizes
from brimful.training.replay import ReplayCheck
from brimful.training.signals import StopRequest
from brimful.training.state import Progress, load_weights, restore, snapshot_of


@dataclass(frozen=True)
class Setup:
    """Everything a session starts from.

    Attributes:
        total_steps: Optimizer updates of the whole run.
        model: Fresh model on its device.
        tokenizer: Saved beside the exported model.
        evaluate: Scores the model on the validation split; returns the values of an evaluation
            record.
        identity: Fingerprints that a resumed checkpoint must share, by name.
        run_folder: Locked by the caller through `lease`.
        tokens_per_step: Tokens that a step reads on average, without padding; None: effective
            batch times sequence length.
        deadline: When the session has to end; None for no limit.
        copy_s: Estimated seconds until a checkpoint written now is durable in the mirror.
        base: How the model is scored before its first step; None: it is not.
        note: Recorded when the session starts; empty: nothing.
    """

    recipe: Recipe
    plan: Plan
    total_steps: int
    device: torch.device
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sequences: Sequences
    evaluate: Callable[[PreTrainedModel], Mapping[str, Any]]
    identity: Mapping[str, str]
    run_folder: Path
    lease: Lease
    listeners: Sequence[Listener]
    tokens_per_step: int | None = None
    deadline: Deadline | None = None
    copy_s: Callable[[], float] = lambda: 0.0
    base: BaseComparison | None = None
    note: str = ""


@dataclass(frozen=True)
class SessionResult:
    """What a finished session leaves: its progress, and the exported model's step."""

    progress: Progress
    exported_step: int
    seconds: float


def run_session(setup: Setup) -> SessionResult:
    """Train to the end, from the newest trusted checkpoint if there is one, and export the best
    model.

    Raises:
        CheckpointError: no checkpoint can be trusted or written; or one belongs to other data,
            tokenizer or objective.
        Interrupted: a signal asked to stop; a checkpoint was written.
        SessionOver: the session's end is near; a checkpoint was written.
        TrainingStopped: the loop gave up.
    """
    started_s = time.perf_counter()
    store = CheckpointStore(
        setup.run_folder / "checkpoints",
        keep=setup.recipe.checkpoint.keep,
        check_writer=setup.lease.check,
    )
    loaded = store.load_newest()
    path = setup.run_folder / JOURNAL_FILE
    before = list(read_journal(path))
    recorded = [int(record["step"]) for record in before if record["kind"] == "step"]
    lost = lost_records(setup.run_folder).get(JOURNAL_FILE, "")
    keep_bytes = 0
    if loaded is not None:
        keep_bytes = _kept_bytes(path, int(loaded.snapshot.state["journal_bytes"]))
    expected = expected_seconds(setup.recipe, setup.plan, setup.total_steps)
    with (
        StopRequest() as stop,
        Journal(path, keep_bytes=keep_bytes) as journal,
        Watchdog(
            setup.run_folder,
            with_start(expected, setup.plan),
            patience_s=setup.recipe.run.patience_s,
            asked_to_stop=stop.has_arrived,
        ) as watchdog,
    ):
        session = TrainingSession(setup, store, loaded, stop, journal, watchdog.begin, expected)
        session.announce(loaded, max(recorded, default=0), lost)
        session.score_base(before)
        progress = session.run()
        if not session.is_complete(progress):
            session.note_end("stopped", started_s)
            raise session.interruption(progress)
        if progress.step < setup.total_steps:
            session.note_early_stop(progress)
        exported_step = session.export(progress)
        session.score_beside_base(progress)
        session.note_loader(progress)
        session.note_end("finished", started_s)
    return SessionResult(progress, exported_step, time.perf_counter() - started_s)


def _kept_bytes(journal: Path, journal_bytes: int) -> int:
    """Return how much of a journal is kept when the run continues from a checkpoint.

    Everything up to the checkpoint, and the records of the session's end after it, provided that
    no step or evaluation was recorded after the checkpoint.
    """
    if not journal.exists():
        return journal_bytes
    after = journal.read_bytes()[journal_bytes:]
    complete_lines = after[: after.rfind(b"\n") + 1]
    try:
        kinds = {json.loads(line)["kind"] for line in complete_lines.splitlines()}
    except (ValueError, KeyError, TypeError):
        return journal_bytes
    if kinds <= {"checkpoint", "loader", "event", "end"}:
        return journal_bytes + len(complete_lines)
    return journal_bytes


class TrainingSession:
    """The state that the loop's callbacks share."""

    def __init__(
        self,
        setup: Setup,
        store: CheckpointStore,
        loaded: Loaded | None,
        stop: StopRequest,
        journal: Journal,
        doing: Callable[[str], None],
        expected: Mapping[str, float],
    ) -> None:
        self.setup, self.store, self.stop = setup, store, stop
        self._run_files = texts_of(setup.run_folder)
        self._doing, self._expected_s = doing, expected
        recipe, plan = setup.recipe, setup.plan
        self.precision = Precision(plan.precision)
        method = find_method(recipe.method).with_options(recipe)
        for name, parameter in setup.model.named_parameters():
            parameter.requires_grad_(method.trains(name, parameter))
        if plan.recompute:
            recompute_activations(setup.model)
        self.optimizer = build_optimizer(setup.model, recipe.optimizer, variant=plan.optimizer)
        torch.manual_seed(recipe.seed)
        self.progress = Progress.fresh(self.precision, setup.device)
        if loaded is not None:
            self.progress = self._restore(loaded)
        self.journal = journal
        self.meter = Meter(
            self.journal,
            setup.listeners,
            device=setup.device,
            total_steps=setup.total_steps,
            skipped=int(self.progress.guard.skipped.item()),
            spikes=int(self.progress.spikes.found.item()),
            spike_policy=recipe.optimizer.spikes,
            tokens_per_step=setup.tokens_per_step,
        )
        self.saved_mark = _mark(self.progress)
        self.saved_s, self.save_took_s = time.perf_counter(), 0.0
        self.sizes = RememberedSizes.of(setup.run_folder, plan)
        self._body = self._hidden_states()
        hooks = step_hooks_of(setup.model, recipe, setup.total_steps)
        self.parts = Parts(
            recipe=recipe,
            network=Network(setup.model, self._forward, plan.loss_chunk),
            method=method,
            optimizer=self.optimizer,
            precision=self.precision,
            device=setup.device,
            sequences=setup.sequences,
            micro_batches=self.sizes.micro_batches,
            total_steps=setup.total_steps,
            evaluate_every=interval(recipe, plan, setup.total_steps),
            meter=self.meter,
            evaluate=self._evaluate,
            save=self.save,
            restore_last_good=self._restore_last_good,
            checkpoint_due=self._checkpoint_due,
            should_stop=self._should_stop,
            loader_workers=plan.loader_workers,
            doing=doing,
            replay=ReplayCheck(recipe.run.replay_check, setup.device, self._note_event),
            remember=self._remember,
            before_step=partial(self._before_step, hooks.before_step),
            penalty=hooks.penalty,
        )

    def run(self) -> Progress:
        """Run the loop; return the progress reached."""
        self.setup.model.train()
        return train(self.parts, self.progress)

    def score_base(self, recorded: Sequence[Mapping[str, Any]]) -> None:
        """Record the held-out loss of the model before its first step, once in a run.

        Args:
            recorded: By earlier sessions. One that goes on without a checkpoint takes the base's
                score over.
        """
        base = self.setup.base
        if base is None or self.progress.step > 0:
            return
        if base.of_base(read_journal(self.journal.path)) is not None:
            return
        before = base.of_base(recorded)
        if before is not None:
            self.meter.note(dict(before))
        else:
            self._compare(base, BASE_MODEL, self.progress)

    def score_beside_base(self, progress: Progress) -> None:
        """Record the exported model's loss on the base's sequences, if no evaluation was on the
        same ones.
        """
        base = self.setup.base
        if base is not None and base.lacks_tuned(list(read_journal(self.journal.path))):
            self._compare(base, TUNED_MODEL, progress)

    def _compare(self, base: BaseComparison, which: str, progress: Progress) -> None:
        self._doing(BASE)
        self.setup.model.eval()
        try:
            values = self._without_compiling(base.score)
        except RequestError as error:
            self.meter.note_event(progress, f"the {which} model was not scored: {error}")
        else:
            self.meter.note(base.record(which, progress.step, values))

    def is_complete(self, progress: Progress) -> bool:
        """Return whether training has reached its end, rather than a stop in the middle."""
        is_scored = progress.evaluated_step == progress.step
        is_over = is_scored and progress.step >= self.setup.total_steps
        return is_over or is_exhausted(progress, self.setup.recipe)

    def interruption(self, progress: Progress) -> Interrupted | SessionOver:
        """Return the error that ends a session in the middle of training."""
        message = (
            f"stopped at step {progress.step} of {self.setup.total_steps}; a checkpoint is saved."
            " Run the same command to continue."
        )
        deadline = self.setup.deadline
        if deadline is not None and not self.stop.is_made():
            return SessionOver(f"{deadline.describe(self.setup.copy_s())}: {message}")
        return Interrupted(message, self.stop.signal_number or signal.SIGINT)

    def save(self, progress: Progress) -> None:
        """Commit a checkpoint of `progress`; the journal is durable first."""
        if _mark(progress) == self.saved_mark and self.store.steps():
            return
        self._doing(CHECKPOINT)
        started_s = time.perf_counter()
        self.setup.lease.renew()
        self.journal.sync()
        snapshot = snapshot_of(
            self.setup.model,
            self.optimizer,
            progress,
            identity=self.setup.identity,
            journal_bytes=self.journal.num_bytes,
            run_files=self._run_files,
            records=num_records_of(self.setup.run_folder, is_growing=True),
        )
        num_bytes = self.store.save(snapshot, protect_step=progress.best_step)
        self.saved_mark, self.saved_s = _mark(progress), time.perf_counter()
        self.save_took_s = self.saved_s - started_s
        self.meter.note_checkpoint(progress.step, num_bytes, self.save_took_s)

    def export(self, progress: Progress) -> int:
        """Write `model/` from the best checkpoint; return its step."""
        self._doing(EXPORT)
        best_step = (
            progress.best_step if progress.best_step in self.store.steps() else progress.step
        )
        checkpoint = self.store.path_of(best_step)
        load_weights(load(checkpoint), self.setup.model)
        self.setup.model.eval()
        export_model(
            self.setup.model,
            self.setup.tokenizer,
            self.setup.run_folder / MODEL_FOLDER,
            checkpoint=checkpoint,
        )
        return best_step

    def note_early_stop(self, progress: Progress) -> None:
        """Record why fewer steps were trained than planned."""
        self.meter.note_event(
            progress,
            f"stopped early at step {progress.step} of {self.setup.total_steps}:"
            f" {progress.evaluations_since_best} evaluations in a row were no better than the one"
            f" after step {progress.best_step} (evaluation.patience)",
        )

    def note_loader(self, progress: Progress) -> None:
        """If steps waited for batches, measure how fast other numbers of threads make them."""
        self._doing(BATCH)
        records = list(read_journal(self.journal.path))
        start = max(index for index, record in enumerate(records) if record["kind"] == "start")
        record = measure_loader(
            records[start:],
            self.setup.sequences,
            self.setup.recipe.effective_batch,
            progress.samples_consumed,
        )
        if record is not None:
            self.meter.note(
                {**record, "step": progress.step, "loader_workers": self.setup.plan.loader_workers}
            )

    def note_end(self, reason: str, started_s: float) -> None:
        self.meter.note(
            {
                "kind": "end",
                "step": self.saved_mark[0],
                "seconds": time.perf_counter() - started_s,
                "reason": reason,
            }
        )
        self.journal.sync()

    def _hidden_states(self) -> HiddenStates:
        if not self.setup.plan.compile:
            return hidden_states_of(self.setup.model)
        shape = (self.sizes.micro_batches[0], self.setup.recipe.sequence_length)
        return compiled(self.setup.model, shape=shape, say=self._note_event)

    def _before_step(self, then: Callable[[int], None], step: int) -> None:
        """Give memory that the C library holds free back if the process holds more than the plan
        thinks possible: rows of ever new lengths leave ever new holes in its heap.
        """
        planned = self.setup.plan.predicted.get("peak_memory_bytes")
        is_on_host = self.setup.device.type == "cpu"
        if is_on_host and planned is not None and unmapped_bytes() > planned.high:
            give_back_free_memory()
        then(step)

    def _forward(self, micro: MicroBatch) -> Tensor:
        return self._body(micro)

    def _remember(self, out_of_memory: dict[str, Any]) -> None:
        """Use smaller micro-batches for the rest of the run; compile the blocks for their shape
        if the plan compiles.
        """
        self.sizes.note(out_of_memory)
        self._body = self._hidden_states()

    def _note_event(self, message: str) -> None:
        self.meter.note_event(self.progress, message)

    def _evaluate(self) -> Mapping[str, Any]:
        """Return the validation score. Evaluation runs without compiling: its batches have other
        shapes, for which compiling would not pay off.
        """
        self._doing(EVALUATION)
        return self._without_compiling(self.setup.evaluate)

    def _without_compiling(
        self, score: Callable[[PreTrainedModel], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        if not self.setup.plan.compile:
            return score(self.setup.model)
        with torch.compiler.set_stance("force_eager"):
            return score(self.setup.model)

    def _checkpoint_due(self, progress: Progress) -> bool:
        if progress.step == 0 or _mark(progress) == self.saved_mark:
            return False
        if progress.evaluated_step == progress.step:
            return True
        every = self.setup.recipe.checkpoint.every
        if every != "auto":
            return progress.step % every == 0
        wait_s = max(CHECKPOINT_AFTER_S, self.save_took_s / MOST_CHECKPOINT_SHARE)
        return time.perf_counter() - self.saved_s >= wait_s

    def _should_stop(self, progress: Progress) -> bool:
        return self.stop.is_made() or self._session_ends(progress)

    def _session_ends(self, progress: Progress) -> bool:
        """Return whether the next step or evaluation and a checkpoint after it may end too late.

        Durations that were not measured yet are those that the plan predicts.
        """
        deadline = self.setup.deadline
        if deadline is None:
            return False
        return not deadline.leaves_room(
            work_s=self._seconds_of_next(progress),
            save_s=self.save_took_s or self._expected_s[CHECKPOINT],
            copy_s=self.setup.copy_s(),
        )

    def _seconds_of_next(self, progress: Progress) -> float:
        work, measured_s = STEP, self.meter.step_time_s
        if evaluation_is_due(self.parts.evaluate_every, self.setup.total_steps, progress):
            work, measured_s = EVALUATION, self.meter.evaluation_s
        return self._expected_s.get(work, 0.0) if measured_s is None else measured_s

    def _restore(self, loaded: Loaded) -> Progress:
        for name, value in self.setup.identity.items():
            stored = loaded.snapshot.identity.get(name)
            if stored != value:
                raise CheckpointError(
                    f"{self.setup.run_folder} was trained on another {name} (fingerprint {stored},"
                    f" now {value}); going on would mix two runs. Put the old one back, or start a"
                    " new run with run.name=NAME."
                )
        return restore(loaded.snapshot, self.setup.model, self.optimizer, self.setup.device)

    def _restore_last_good(self) -> Progress | None:
        loaded = self.store.load_newest()
        return None if loaded is None else self._restore(loaded)

    def announce(self, loaded: Loaded | None, last_step: int, lost_records: str) -> None:
        """Record where this session starts, which checkpoints were damaged, what the journal lost,
        and how many recorded steps are trained again.
        """
        recipe, step = self.setup.recipe, self.progress.step
        tokens = (
            self.setup.tokens_per_step or self.setup.plan.effective_batch * recipe.sequence_length
        )
        self.meter.note(
            {
                "kind": "start",
                "step": step,
                "total_steps": self.setup.total_steps,
                "tokens_per_step": tokens,
                "run": recipe.run_name,
                "resumed": loaded is not None,
            }
        )
        if self.setup.note:
            self._note_event(self.setup.note)
        lost = max(0, last_step - step)
        if loaded is not None:
            for problem in loaded.quarantined:
                self._note_event(f"a damaged checkpoint was put in quarantine ({problem})")
            self._note_event(
                f"continuing from the checkpoint of step {step}; {lost} steps are done again"
            )
        elif lost:
            self._note_event(
                f"no checkpoint was written before the stop; {lost} steps are done again from the"
                " start"
            )
        if lost_records:
            self._note_event(lost_records)
        self._repeat_lost_records()

    def _repeat_lost_records(self) -> None:
        """Write the out-of-memory records again that were cut off with the end of the journal."""
        journal = list(read_journal(self.journal.path))
        for record in self.sizes.events:
            if record not in journal:
                self.meter.note(record)


def _mark(progress: Progress) -> tuple[int, int, int]:
    """Return what tells the checkpoint of this point from others of the run."""
    return progress.step, progress.evaluated_step, progress.samples_consumed


def recompute_activations(model: PreTrainedModel, *, reentrant: bool = False) -> None:
    """Switch activation checkpointing on for every block, by the name that this version of
    transformers has for it.
    """
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable({"use_reentrant": reentrant})
