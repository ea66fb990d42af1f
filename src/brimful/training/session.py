"""One training session of a run: resume from the newest checkpoint, run the loop, export the best
model.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from brimful.base.errors import (
    CheckpointError,
    PlanError,
    RequestError,
)
from brimful.base.rundir import Journal, read_journal
from brimful.base.types import Json, JsonDict, Numbers
from brimful.base.warning_codes import coded
from brimful.base.watchdog import Watchdog
from brimful.data.batches import MicroBatch
from brimful.hardware.monitored import monitored_until
from brimful.hardware.process_memory import give_back_free_memory, unmapped_bytes
from brimful.model.fingerprint import is_same_model
from brimful.model.registered import step_hooks_of
from brimful.planning.compiling import note_compiled
from brimful.planning.cost import checkpoint_bytes
from brimful.planning.spacing import interval
from brimful.runs.deciding import lost_records, num_records_of, texts_of
from brimful.runs.files import JOURNAL_FILE, MODEL_FOLDER
from brimful.runs.records import BASE_MODEL, TUNED_MODEL
from brimful.training.activations import HostMemory, offload_activations, recompute_activations
from brimful.training.checkpoint import CheckpointStore, Loaded, Snapshot, open_journal
from brimful.training.decisions import Decisions, StopRequest, drawn, mark_of
from brimful.training.export import export_model
from brimful.training.loader import measure_loader
from brimful.training.loop import Parts, is_exhausted, train
from brimful.training.losses import PieceLosses, piece_losses
from brimful.training.memory_errors import RememberedSizes
from brimful.training.meter import Meter
from brimful.training.method import (
    HiddenStates,
    Method,
    Network,
    compiled,
    compiled_piece_losses,
    find_method,
    hidden_states_of,
)
from brimful.training.optim import build_optimizer
from brimful.training.pace import (
    BASE,
    BATCH,
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    RankPace,
    Spans,
    expected_seconds,
    with_start,
)
from brimful.training.precision import Precision
from brimful.training.setup import BaseComparison, Setup
from brimful.training.state import (
    Progress,
    gathered_random_states,
    load_weights,
    newest_checkpoint,
    own_random_states,
    refuse_different_weights,
    restore,
    seed_rank,
    snapshot_of,
)
from brimful.training.step_checks import Certificate, ReplayCheck
from brimful.training.tensorfile import Tensors
from brimful.training.world import noticing_lost_ranks

if TYPE_CHECKING:
    from brimful.training.sharded_session import InParts


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
        CheckpointError: no checkpoint can be trusted or written, or the disk has no room for one;
            or one belongs to other data, tokenizer or objective.
        Interrupted: a signal asked to stop; a checkpoint was written.
        SessionOver: the session's end is near; a checkpoint was written.
        TrainingStopped: the loop gave up.
    """
    started_s = time.perf_counter()
    store = CheckpointStore(
        setup.run_folder / "checkpoints",
        keep=setup.recipe.checkpoint.keep,
        check_writer=(lambda: None) if setup.lease is None else setup.lease.check,
    )
    loaded = newest_checkpoint(store, setup.world)
    if loaded is None:
        store.refuse_full_disk(checkpoint_bytes(setup.recipe, setup.plan))
    path = setup.run_folder / JOURNAL_FILE
    before = list(read_journal(path))
    recorded = [int(record["step"]) for record in before if record["kind"] == "step"]
    lost = lost_records(setup.run_folder).get(JOURNAL_FILE, "")
    expected = expected_seconds(setup.recipe, setup.plan, setup.total_steps)
    with (
        StopRequest() as stop,
        open_journal(path, loaded, setup.world) as journal,
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
            raise session.decisions.interruption(progress)
        if progress.step < setup.total_steps:
            session.note_early_stop(progress)
        exported_step = session.export(progress)
        if setup.world.is_first:
            session.score_beside_base(progress)
            session.note_loader(progress)
        session.note_end("finished", started_s)
    return SessionResult(progress, exported_step, time.perf_counter() - started_s)


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
        expected: Numbers,
    ) -> None:
        self.setup, self.store = setup, store
        self.world = setup.world
        self._run_files = texts_of(setup.run_folder)
        self._doing = doing
        recipe, plan = setup.recipe, setup.plan
        self.precision = Precision(plan.precision)
        method = find_method(recipe.method).with_options(recipe.loss_options)
        if plan.recompute:
            recompute_activations(setup.model, plan.recompute)
        if plan.offload:
            offload_activations(setup.model, HostMemory())
        setup.choose_kernels()
        self._pace = RankPace(setup.device)
        self._in_parts = _in_parts(setup, method, self._pace.talking)
        if self._in_parts is not None:
            method = self._in_parts.method(method)
        self.optimizer = build_optimizer(
            setup.model, recipe.optimizer, variant=plan.optimizer, seed=recipe.seed
        )
        seed_rank(self.world, recipe.seed)
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
        evaluate_every = interval(recipe, plan, setup.total_steps)
        self.decisions = Decisions(setup, stop, self.meter, expected, evaluate_every, self.progress)
        self.sizes = RememberedSizes.of(setup.run_folder, plan)
        self._body = self._hidden_states()
        hooks = step_hooks_of(setup.model, recipe, setup.total_steps)
        self.parts = Parts(
            recipe=recipe,
            network=Network(
                setup.model,
                self._forward,
                plan.loss_chunk,
                self._piece_losses(),
            ),
            method=method,
            optimizer=self.optimizer,
            precision=self.precision,
            device=setup.device,
            sequences=setup.sequences,
            micro_batches=self.sizes.micro_batches,
            total_steps=setup.total_steps,
            evaluate_every=evaluate_every,
            meter=self.meter,
            evaluate=self._evaluate,
            save=self.save,
            restore_last_good=self._restore_last_good,
            checkpoint_due=self.decisions.checkpoint_due,
            should_stop=self.decisions.should_stop,
            loader_workers=plan.loader_workers,
            draw=partial(drawn, setup, stop),
            doing=doing,
            replay=ReplayCheck(recipe.run.replay_check, setup.device, self._note_event),
            certificate=Certificate(is_new=self.progress.step == 0),
            remember=self._remember,
            hooks=replace(hooks, before_step=partial(self._before_step, hooks.before_step)),
            world=self.world,
        )
        if self._in_parts is not None:
            together = self._pace.timed(self._in_parts.compute)
            self.parts = replace(self.parts, together=together, is_sharded=True)
        elif not self.world.is_alone:
            from brimful.training.gradient_sum import (  # noqa: PLC0415 - most runs have one rank
                GradientSum,
            )

            summed = GradientSum(self.world, self.parts.parameters, self._pace.talking)
            self.parts = replace(
                self.parts,
                together=self._pace.timed(summed.compute),
                before_last_pass=summed.begin_last_pass,
            )

    def run(self) -> Progress:
        """Run the loop; return the progress reached."""
        self.setup.model.train()
        with nullcontext() if self.world.is_alone else noticing_lost_ranks():
            return train(self.parts, self.progress)

    def score_base(self, recorded: Sequence[Json]) -> None:
        """Record the held-out loss of the model before its first step, once in a run.

        Args:
            recorded: Records of earlier sessions. One that goes on without a checkpoint takes the
                base's score over.
        """
        base = self.setup.base
        if base is None or self.progress.step > 0:
            return
        self._doing(BASE)
        self.world.first(partial(self._score_base, base, recorded))

    def _score_base(self, base: BaseComparison, recorded: Sequence[Json]) -> None:
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
            self._doing(BASE)
            self._compare(base, TUNED_MODEL, progress)

    def _compare(self, base: BaseComparison, which: str, progress: Progress) -> None:
        self.setup.model.eval()
        try:
            values = self._without_compiling(base.score)
        except RequestError as error:
            self.meter.note_event(
                progress, coded("B309", f"the {which} model was not scored: {error}")
            )
        else:
            self.meter.note(base.record(which, progress.step, values))

    def is_complete(self, progress: Progress) -> bool:
        """Return whether training has reached its end, rather than a stop in the middle."""
        is_scored = progress.evaluated_step == progress.step
        is_over = is_scored and progress.step >= self.setup.total_steps
        return is_over or is_exhausted(progress, self.setup.recipe)

    def save(self, progress: Progress) -> None:
        """Commit a checkpoint of `progress`; the journal is durable first."""
        is_saved = mark_of(progress) == self.decisions.saved_mark
        if is_saved and self.world.tell(bool(self.store.steps())):
            return
        self._doing(CHECKPOINT)
        started_s = time.perf_counter()
        num_bytes = self._write_checkpoint(progress, gathered_random_states(self.world))
        took_s = time.perf_counter() - started_s
        self.decisions.note_save(progress, took_s)
        self.meter.note_checkpoint(progress.step, num_bytes, took_s)
        if not self.world.is_alone:
            self._note_ranks(progress)

    def _note_ranks(self, progress: Progress) -> None:
        """Record how each rank gets on, here where all of them talk anyway."""
        own = {"rank": self.world.rank, "memory_bytes": self.meter.peak_bytes()}
        every = self.world.gather({**own, **self._pace.take()})
        self.meter.note({"kind": "ranks", "step": progress.step, "ranks": every})

    def _write_checkpoint(self, progress: Progress, other_ranks: Tensors) -> int:
        """Write what the ranks hold; return its bytes."""

        def snapshot() -> Snapshot:
            if self.setup.lease is not None:
                self.setup.lease.renew()
            self.journal.sync()
            return snapshot_of(
                self.setup.model,
                self.optimizer,
                progress,
                identity=self.setup.identity,
                journal_bytes=self.journal.num_bytes,
                run_files=self._run_files,
                records=num_records_of(self.setup.run_folder, is_growing=True),
                monitored_until=monitored_until(self.setup.run_folder),
                other_ranks=other_ranks,
            )

        if self._in_parts is not None:
            own = self.world.check(snapshot)
            return self._in_parts.save(self.store, own, progress.best_step)
        refuse_different_weights(self.world, self.setup.model, progress.step)
        num_bytes: int = self.world.first(
            lambda: self.store.save(snapshot(), protect_step=progress.best_step)
        )
        return num_bytes

    def export(self, progress: Progress) -> int:
        """Write `model/` from the best checkpoint; return its step."""
        self._doing(EXPORT)
        exported_step: int = self.world.first(partial(self._export, progress))
        return exported_step

    def _export(self, progress: Progress) -> int:
        loaded = self.store.load_best(progress.best_step)
        best = loaded.snapshot
        for note in loaded.notes(progress.best_step):
            self._note_event(note)
        model = self.setup.model
        if self.setup.is_sharded and self.setup.rebuild is not None:
            model = self.setup.rebuild()
        load_weights(best, model)
        model.eval()
        export_model(
            model,
            self.setup.tokenizer,
            self.setup.run_folder / MODEL_FOLDER,
            checkpoint=self.store.path_of(best.step),
        )
        return best.step

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
                "step": self.decisions.saved_mark[0],
                "seconds": time.perf_counter() - started_s,
                "reason": reason,
            }
        )
        self.journal.sync()

    def _hidden_states(self) -> HiddenStates:
        recipe, plan = self.setup.recipe, self.setup.plan
        if not plan.compile:
            return hidden_states_of(self.setup.model)
        shape = recipe.shape_of(self.sizes.micro_batches[0])
        return compiled(
            self.setup.model,
            shape=shape,
            say=self._note_event,
            done=partial(note_compiled, recipe, plan.device["name"], plan.precision),
        )

    def _piece_losses(self) -> PieceLosses:
        if self.setup.plan.compile and self.setup.device.type == "cuda":
            return compiled_piece_losses(self._note_event)
        return piece_losses

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

    def _remember(self, out_of_memory: JsonDict) -> None:
        """Use smaller micro-batches for the rest of the run; compile the blocks for their shape
        if the plan compiles.
        """
        self.sizes.note(out_of_memory, writes=self.world.is_first or self.setup.is_sharded)
        if out_of_memory["phase"] == "training":
            self._body = self._hidden_states()

    def _note_event(self, message: str) -> None:
        self.meter.note_event(self.progress, message)

    def _evaluate(self) -> Json:
        """Return the validation score. Evaluation runs without compiling: its batches have other
        shapes, for which compiling would not pay off.
        """
        self._doing(EVALUATION)
        score = partial(self._without_compiling, self.setup.evaluate)
        if self._in_parts is not None:
            return self._in_parts.score(score)
        record: Json = self.world.first(lambda: dict(score()))
        return record

    def _without_compiling(self, score: Callable[[PreTrainedModel], Json]) -> Json:
        if not self.setup.plan.compile:
            return score(self.setup.model)
        with torch.compiler.set_stance("force_eager"):
            return score(self.setup.model)

    def _restore(self, loaded: Loaded) -> Progress:
        for name, value in self.setup.identity.items():
            stored = loaded.snapshot.identity.get(name)
            if not is_same_model(stored, value):
                raise CheckpointError(
                    f"{self.setup.run_folder} was trained on another {name} (fingerprint {stored},"
                    f" now {value}); going on would mix two runs. Put the old one back, or start a"
                    " new run with run.name=NAME."
                )
        states = own_random_states(self.world, loaded.snapshot.tensors["random"])
        if not states:
            seed_rank(self.world, self.setup.recipe.seed, loaded.snapshot.step)
        return restore(
            loaded.snapshot, self.setup.model, self.optimizer, self.setup.device, random=states
        )

    def _restore_last_good(self) -> Progress | None:
        loaded = newest_checkpoint(self.store, self.world)
        return None if loaded is None else self._restore(loaded)

    def announce(self, loaded: Loaded | None, last_step: int, lost_records: str) -> None:
        """Record where this session starts, which checkpoints were damaged, what the journal lost,
        and how many recorded steps are trained again.
        """
        recipe, step = self.setup.recipe, self.progress.step
        tokens = self.setup.tokens_per_step or self.setup.plan.tokens_per_step
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
            for note in loaded.notes():
                self._note_event(note)
            self._note_event(
                f"continuing from the checkpoint of step {step}; {lost} steps are done again"
            )
        elif lost:
            self._note_event(
                coded(
                    "B302",
                    f"no checkpoint was written before the stop; {lost} steps are done again from"
                    " the start",
                )
            )
        if lost_records:
            self._note_event(coded("B303", lost_records))
        self._repeat_lost_records()

    def _repeat_lost_records(self) -> None:
        """Write what is known from before this session, such as out-of-memory records that were
        cut off with the end of the journal.
        """
        journal = list(read_journal(self.journal.path))
        for record in self.setup.reference + self.sizes.events:
            if record not in journal:
                self.meter.note(record)


def _in_parts(setup: Setup, method: Method, talking: Spans) -> "InParts | None":
    """Spread the model over the ranks if the plan says so.

    Args:
        talking: Takes the time of what ranks exchange.

    Raises:
        PlanError: it cannot be trained in parts.
    """
    if not setup.is_sharded:
        return None
    hooks = step_hooks_of(setup.model, setup.recipe, setup.total_steps)
    if not method.in_parts or hooks.penalty is not None:
        raise PlanError(
            f"{setup.recipe.name} cannot be trained with its model in parts on several devices: its"
            " method or its model reaches into the layers between steps. Use"
            " plan.spread=replicated."
        )
    # Torch's FSDP2, which a model on one device does not need.
    from brimful.training.sharded_session import InParts  # noqa: PLC0415

    copies = setup.world.machines if setup.plan.spread == "hybrid" else 1
    return InParts(setup.model, setup.world, setup.device, talking, copies)
