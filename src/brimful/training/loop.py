"""The training loop. Every method, device and recipe runs through `train`; brimful's only backward
pass is here.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from brimful.base.errors import StartAgain, TrainingStopped
from brimful.base.rundir import finite
from brimful.base.types import Json, JsonDict
from brimful.base.warning_codes import coded
from brimful.data.batches import MeasuredBatch, MicroBatch, StepBatch
from brimful.model.step_hooks import NO_HOOKS, StepHooks
from brimful.recipe import Recipe
from brimful.training.divergence import (
    ROLLBACKS_BEFORE_STOP,
    gave_up,
    keep,
    kept_where_it_fails,
    noting_states,
    problem_of_steps,
    refuse_not_finite,
)
from brimful.training.memory_errors import (
    CannotHalveAlone,
    OutOfMemory,
    all_or_nothing,
    attempt,
    give_back_memory,
    halved,
    random_states,
    rewind,
)
from brimful.training.meter import Meter
from brimful.training.method import Method, Network, by_all, measured
from brimful.training.optim import guarded_update, learning_rate_at, loss_factor
from brimful.training.pace import BATCH, STEP
from brimful.training.precision import Precision
from brimful.training.state import Progress
from brimful.training.step_checks import NO_CERTIFICATE, Certificate, ReplayCheck
from brimful.training.world import ALONE, World


class Sequences(Protocol):
    """Training sequences in their order; sample i is a pure function of the seed and i."""

    def batch(self, first_sample: int, count: int) -> StepBatch: ...


@dataclass(frozen=True)
class Parts:
    """Everything the loop works with.

    Attributes:
        micro_batches: Sequences of each forward and backward pass of one optimizer step; they add
            up to the effective batch. If they run out of memory they are halved for the rest of the
            run.
        save: Writes a checkpoint of the current progress.
        restore_last_good: Puts model, optimizer and random state back to the newest checkpoint and
            returns its progress; None if there is none.
        evaluate: Scores the model on validation and returns the record's values.
        meter: Records every step and informs listeners, with a delay.
        should_stop: True once a signal asked to stop or the session ends; called at step
            boundaries, before an evaluation that is due there.
        loader_workers: Threads that make batches ahead of time; 0 makes them when they are needed.
        replay: Computes some steps twice; None: none.
        certificate: Looks at the first step; without one nothing does.
        draw: Draws what the next batch is made of, where that depends on the weights; False: the
            run was asked to stop meanwhile.
        doing: Called with what begins now: the last piece of work has ended.
        remember: Called with the `out_of_memory` record whenever the micro-batches get smaller.
        hooks: What the architecture adds to every step.
        world: The ranks that share the run. Each computes the gradients of its own slice of every
            batch.
        together: Calls the function that computes the gradients of this rank and returns its loss;
            adds up gradients and losses of all ranks.
        before_last_pass: Called when only one pass of a step is left to be computed.
        is_sharded: Each rank holds a part of the model. All compute equally many passes then, and a
            step cannot be repeated.
    """

    recipe: Recipe
    network: Network
    method: Method
    optimizer: torch.optim.Optimizer
    precision: Precision
    device: torch.device
    sequences: Sequences
    micro_batches: tuple[int, ...]
    total_steps: int
    evaluate_every: int
    meter: Meter
    evaluate: Callable[[], Json]
    save: Callable[[Progress], None]
    restore_last_good: Callable[[], Progress | None]
    checkpoint_due: Callable[[Progress], bool]
    should_stop: Callable[[Progress], bool]
    loader_workers: int = 1
    draw: Callable[["Parts", Progress], bool] = lambda parts, progress: True
    doing: Callable[[str], None] = lambda work: None
    replay: ReplayCheck | None = None
    certificate: Certificate = NO_CERTIFICATE
    remember: Callable[[JsonDict], None] = lambda record: None
    hooks: StepHooks = NO_HOOKS
    world: World = ALONE
    together: Callable[[Callable[[], Tensor]], Tensor] = lambda compute: compute()
    before_last_pass: Callable[[], None] = lambda: None
    is_sharded: bool = False

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.network.model.named_parameters())


def train(parts: Parts, progress: Progress) -> Progress:
    """Run from `progress` to the last step or the first request to stop.

    Returns:
        The progress reached; a checkpoint of it exists.

    Raises:
        TrainingStopped: losses or gradients stayed non-finite through every rollback, or memory
            does not hold one sequence.
    """
    micro_batches = parts.micro_batches
    with closing(_Prefetch(parts, progress)) as batches:
        while True:
            if problem := _evaluate_if_due(parts, progress):
                progress = _roll_back(parts, progress, batches, problem)
                continue
            if _is_over(parts, progress) or parts.checkpoint_due(progress):
                parts.meter.flush()
                # No checkpoint after bad steps: a rollback has to return to before them.
                if _is_over(parts, progress) or not progress.is_in_doubt:
                    parts.save(progress)
                if _is_over(parts, progress):
                    return progress
            if not parts.draw(parts, progress):
                continue
            parts.doing(BATCH)
            with parts.meter.waiting():
                batch = next(batches)
            parts.doing(STEP)
            micro_batches = _step(parts, progress, batch, micro_batches)
            parts.meter.flush_if_due()
            if problem := problem_of_steps(progress, parts.total_steps):
                progress = _roll_back(parts, progress, batches, problem)


def _is_over(parts: Parts, progress: Progress) -> bool:
    return (
        progress.step >= parts.total_steps
        or parts.should_stop(progress)
        or is_exhausted(progress, parts.recipe)
    )


def is_exhausted(progress: Progress, recipe: Recipe) -> bool:
    """Return whether early stopping applies: evaluation.patience evaluations in a row were no
    better.
    """
    patience = recipe.evaluation.patience
    return patience is not None and progress.evaluations_since_best >= patience


def _step(
    parts: Parts, progress: Progress, batch: StepBatch, micro_batches: tuple[int, ...]
) -> tuple[int, ...]:
    """Make one optimizer update over the effective batch, repeated with smaller micro-batches if
    memory runs out; return the micro-batches that fitted.

    A repetition begins with the sequences, weights, guard and random generators of the first try.
    Its gradient is the same sum over the same tokens, in another order; dropout draws other masks,
    because they depend on the micro-batches. The host never waits for the device here.
    """
    generators = random_states(parts.device)
    totals = Totals.of(parts.world, batch)
    while isinstance(
        result := attempt(partial(_update, parts, progress, batch, totals, micro_batches)),
        OutOfMemory,
    ):
        _drop_gradients(parts)
        give_back_memory(parts.device)
        rewind(generators, parts.device)
        micro_batches = _smaller(parts, progress, micro_batches, result)
    loss, grad_norm, named = result
    progress.advance(sequences=parts.recipe.effective_batch, target_tokens=totals.num_target_tokens)
    parts.meter.note_step(
        progress,
        loss=loss,
        grad_norm=grad_norm,
        learning_rate=parts.optimizer.param_groups[0]["lr"],
        named=named,
    )
    return micro_batches


@dataclass(frozen=True)
class Totals:
    """Sums of a step over all ranks: what its loss is divided by, and its target tokens."""

    divisor: float
    num_target_tokens: int

    @classmethod
    def of(cls, world: World, batch: StepBatch) -> "Totals":
        """Return them from the batch of this rank and, if there are any, those of the others."""
        if world.is_alone:
            return cls(batch.loss_divisor, batch.num_target_tokens)
        divisor, tokens = world.sums([batch.loss_divisor, batch.num_target_tokens])
        return cls(divisor, int(tokens))


def _update(
    parts: Parts,
    progress: Progress,
    batch: StepBatch,
    totals: Totals,
    micro_batches: tuple[int, ...],
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Compute the gradients and make the update, or raise before the run's state has changed;
    return loss, gradient norm and the means of what the method named.
    """
    divisor = totals.divisor
    scale = loss_factor(progress.guard.loss_scale, divisor)
    names: list[str] = []
    network = _knowing_the_step(parts, batch, divisor, micro_batches)
    compute = partial(
        _compute_gradients,
        parts,
        network,
        progress.step,
        batch,
        divisor,
        micro_batches,
        scale,
        names,
    )
    if parts.replay is not None:
        compute = partial(parts.replay.compute, progress.step, parts.named_parameters, compute)
    summed = parts.together(compute)
    loss, sums_N2 = summed[0] / divisor, summed[1:].view(-1, 2)
    named = dict(zip(names, sums_N2[:, 0] / sums_N2[:, 1], strict=True))
    if progress.step == 0:
        refuse_not_finite(loss, parts.precision)
    learning_rate = learning_rate_at(progress.step, parts.total_steps, parts.recipe.optimizer)
    for group in parts.optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_factor", 1.0)
    micros = batch.micro_batches(_own(parts, micro_batches))
    with parts.certificate.around(parts, progress, micros), all_or_nothing(parts.optimizer):
        grad_norm = guarded_update(
            parts.optimizer,
            progress.guard,
            parts.precision,
            loss=loss,
            clip_norm=parts.recipe.optimizer.clip_norm,
            carried=scale * divisor,
            judge=partial(progress.spikes.judge, loss, policy=parts.recipe.optimizer.spikes),
        )
    progress.spikes.accept()
    return loss, grad_norm, named


def _knowing_the_step(
    parts: Parts, batch: StepBatch, divisor: float, micro_batches: tuple[int, ...]
) -> Network:
    """Return the network with what the method measures of the step of all ranks.

    Raises:
        FoundOutOfMemory: on every rank, if memory ran out on any.
    """
    if parts.method.measure is None:
        return parts.network
    _drop_gradients(parts)
    own = cast(MeasuredBatch, batch).measured
    pieces = (micro.to(parts.device) for micro in own.micro_batches(_own(parts, micro_batches)))
    measure = partial(
        measured, parts.network, parts.method, parts.precision, parts.device, pieces, divisor
    )
    return by_all(parts.world, measure)


def _own(parts: Parts, micro_batches: tuple[int, ...]) -> tuple[int, ...]:
    """Return the micro-batches of this rank's part of a step."""
    _, count = parts.world.slice_of(parts.recipe.effective_batch)
    return micro_batches if parts.world.is_alone else first_of(micro_batches, count)


def _compute_gradients(
    parts: Parts,
    network: Network,
    step: int,
    batch: StepBatch,
    divisor: float,
    micro_batches: tuple[int, ...],
    scale: Tensor,
    names: list[str],
) -> Tensor:
    """Compute this rank's gradients of a step from nothing; return its loss, summed over the
    targets, and behind it the sum and the count of each value that the method names. `names` gets
    their names.
    """
    _drop_gradients(parts)
    parts.hooks.before_step(step)
    pieces = _pieces(parts, batch.micro_batches(_own(parts, micro_batches)))
    added, penalty = None, parts.hooks.penalty
    if penalty is not None and parts.world.is_first:  # it counts once, not once per rank
        added = partial(_penalty_sum, penalty, step, divisor)
    noted: list[Tensor] = []
    sums: dict[str, Tensor] = {}
    network = network if step else noting_states(network, noted)
    network = replace(network, note=partial(_add_named, sums))
    loss = accumulate_gradients(
        network, parts.method, parts.precision, parts.device, pieces, scale, added=added
    )
    if noted:
        # Not a number from the first step where a hidden state is none, whether or not it is
        # scored.
        loss = loss + 0 * torch.stack(noted).sum()
    names[:] = sums
    return torch.cat([loss[None], *sums.values()])


def _add_named(sums: dict[str, Tensor], name: str, values: Tensor, counts: Tensor) -> None:
    """Add the sum and the number of the values that count to those of earlier passes."""
    added = torch.stack([(values.detach() * counts).sum(), counts.sum()])
    sums[name] = sums[name] + added if name in sums else added


def first_of(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the first sizes that add up to `count`, the last one cut: (4, 4, 2), 7 -> (4, 3)."""
    kept: list[int] = []
    for size in sizes:
        if count > 0:
            kept.append(min(size, count))
        count -= size
    return tuple(kept)


def _pieces(parts: Parts, micro_batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Yield micro-batches on the device. Among ranks that hold the whole model the last one is
    announced; among those that hold parts all get equally many, the last ones perhaps without
    targets.
    """
    if parts.world.is_alone:
        yield from (micro.to(parts.device) for micro in micro_batches)
        return
    if parts.is_sharded:
        own = list(micro_batches)
        (most,) = parts.world.largest([len(own)])
        own += [own[-1].uncounted()] * (most - len(own))
        yield from (micro.to(parts.device) for micro in own)
        return
    waiting = next(micro_batches)
    for following in micro_batches:
        yield waiting.to(parts.device)
        waiting = following
    # Gradients that are computed again, or that a penalty is added to, must not be sent before.
    if parts.replay is None and parts.hooks.penalty is None:
        parts.before_last_pass()
    yield waiting.to(parts.device)


def _penalty_sum(penalty: Callable[[int], Tensor], step: int, divisor: float) -> Tensor:
    """Return the penalty on the scale of a loss that is still summed over the targets."""
    return penalty(step) * divisor


def _drop_gradients(parts: Parts) -> None:
    for parameter in parts.parameters:
        parameter.grad = None


def _smaller(
    parts: Parts, progress: Progress, micro_batches: tuple[int, ...], failure: OutOfMemory
) -> tuple[int, ...]:
    """Return halved micro-batches; record and remember them.

    Raises:
        TrainingStopped: each holds one sequence already. A checkpoint of the last complete step is
            written.
    """
    where, step = f"{failure.place}{failure}", progress.step + 1
    if failure.place == "optimizer update" and not parts.world.is_alone:
        raise TrainingStopped(
            f"out of memory in the {where} of step {step}, which other ranks have made: this step"
            " cannot be repeated. Checkpoints written before are kept: free memory that other"
            " programs hold, then run the same command to continue from the newest one."
        )
    if max(micro_batches) > 1:
        smaller = halved(micro_batches)
        parts.remember(
            parts.meter.note_out_of_memory(step, "training", micro_batches, smaller, where=where)
        )
        if parts.is_sharded:
            raise StartAgain(
                f"out of memory in the {where} of step {step} on rank {parts.world.rank}. Ranks"
                " that hold parts of a model cannot repeat a step alone, so all end. The next start"
                f" takes at most {max(smaller)} sequences at once: run the same command to continue"
                " from the newest checkpoint."
            )
        return smaller
    if not parts.is_sharded:
        keep(parts, progress)
    raise TrainingStopped(
        f"out of memory in the {where} of step {step}, with one sequence per micro-batch. What was"
        " trained so far is kept. To continue this run: free memory that other programs hold, or"
        " repeat the command with plan.recompute=true (if it is off) or with plan.loss_chunk below"
        f" {parts.network.loss_chunk}. Otherwise start a new run with sequence_length below"
        f" {parts.recipe.sequence_length}."
    )


def accumulate_gradients(
    network: Network,
    method: Method,
    precision: Precision,
    device: torch.device,
    micro_batches: Iterable[MicroBatch],
    scale: Tensor,
    *,
    added: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Run forward and backward pass of every micro-batch of one optimizer step.

    Args:
        scale: 0-dim factor on every micro-batch's loss before its backward pass.
        added: Returns another loss whose gradient is added once: a penalty on the weights. Called
            last, when no activations are held any more.

    Returns:
        The summed loss in nats, unscaled, without `added`.
    """
    loss_sum = torch.zeros((), dtype=torch.float32, device=device)
    for micro in micro_batches:
        with precision.autocast(device):
            micro_loss_sum = method.loss_sum(network, micro)
        _backward(micro_loss_sum * scale)
        loss_sum += micro_loss_sum.detach()
    if added is not None:
        _backward(added() * scale)
    return loss_sum


def _backward(scaled: Tensor) -> None:
    scaled.backward()


def evaluation_is_due(every: int, total_steps: int, progress: Progress) -> bool:
    """Return whether the model is evaluated before the next step."""
    is_scheduled = progress.step % every == 0 or progress.step >= total_steps
    return progress.step > 0 and is_scheduled and progress.evaluated_step < progress.step


def _evaluate_if_due(parts: Parts, progress: Progress) -> str:
    """Score the model if that is due; return why training has diverged, as a clause, empty where
    the score is finite.
    """
    is_due = evaluation_is_due(parts.evaluate_every, parts.total_steps, progress)
    if not is_due or parts.should_stop(progress):
        return ""
    parts.meter.flush()
    parts.network.model.eval()
    failed = f"the evaluation after step {progress.step} failed"
    try:
        with kept_where_it_fails(parts, progress, failed):
            score = dict(parts.evaluate())
    except CannotHalveAlone as error:
        sizes = (error.larger,), (error.smaller,)
        where = f"validation{error.failure}"
        parts.remember(
            parts.meter.note_out_of_memory(progress.step, "evaluation", *sizes, where=where)
        )
        raise
    parts.network.model.train()
    for larger, smaller in pairwise(score.pop("batch_sizes", ())):
        parts.meter.note_out_of_memory(
            progress.step,
            "evaluation",
            (larger,),
            (smaller,),
            where=str(score.get("split", "evaluation")),
        )
    for message in score.pop("messages", ()):
        parts.meter.note_event(progress, message)
    loss, objective = finite(score["loss"]), finite(score.get("objective", score["loss"]))
    is_best = loss is not None and progress.note_score(
        math.nan if objective is None else objective, loss
    )
    parts.meter.note_evaluation(progress, score, best=is_best)
    return (
        "" if loss is not None else f"the validation loss after step {progress.step} is not finite"
    )


def _roll_back(parts: Parts, progress: Progress, batches: "_Prefetch", problem: str) -> Progress:
    """Go back to the last checkpoint and leave out the sequences that led to a problem.

    Raises:
        TrainingStopped: that was done ROLLBACKS_BEFORE_STOP times already, or there is no
            checkpoint.
    """
    parts.meter.flush()
    is_hopeless = progress.rollbacks >= ROLLBACKS_BEFORE_STOP
    restored = None if is_hopeless else parts.restore_last_good()
    if restored is None and not is_hopeless and progress.spikes.undo.item():
        progress.skip_to(progress.samples_consumed, rollbacks=progress.rollbacks)
        parts.meter.note_event(
            progress,
            coded(
                "B305", f"{problem}: no checkpoint is there yet, so only its update was left out"
            ),
        )
        return progress
    if restored is None:
        raise gave_up(
            problem,
            progress.rollbacks,
            parts.recipe,
            parts.precision,
            has_checkpoint=is_hopeless,
        )
    restored.skip_to(progress.samples_consumed, rollbacks=progress.rollbacks + 1)
    parts.meter.note_event(
        restored,
        coded(
            "B305",
            f"{problem}: rolled back to step {restored.step}, leaving out"
            f" {progress.step - restored.step}"
            " steps' sequences",
        ),
    )
    batches.restart(restored)
    return restored


class _Prefetch:
    """The batches of the next optimizer steps, made by `loader_workers` threads while the current
    step computes; without threads, made when they are asked for.
    """

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self._batch, self._count = parts.sequences.batch, parts.recipe.effective_batch
        self._first, self._share = parts.world.slice_of(self._count)
        self._ahead = parts.loader_workers
        self._executor = ThreadPoolExecutor(
            max_workers=max(1, self._ahead), thread_name_prefix="batches"
        )
        self.restart(progress)

    def restart(self, progress: Progress) -> None:
        self._next_sample = progress.samples_consumed
        self._futures: deque[Future[StepBatch]] = deque()
        self._submit()

    def __next__(self) -> StepBatch:
        if not self._ahead:
            self._next_sample += self._count
            return self._batch(self._next_sample - self._count + self._first, self._share)
        batch = self._futures.popleft().result()
        self._submit()
        return batch

    def _submit(self) -> None:
        while len(self._futures) < self._ahead:
            self._futures.append(
                self._executor.submit(self._batch, self._next_sample + self._first, self._share)
            )
            self._next_sample += self._count

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
