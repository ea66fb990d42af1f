"""The loop: exact accumulation, same seed same run, bad steps, memory that runs out, and what
happens between steps.
"""

import dataclasses
import json
import math
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from syrupy.assertion import SnapshotAssertion
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from brimful.base.errors import RequestError, TrainingStopped
from brimful.base.rundir import Journal, read_journal
from brimful.base.types import Json, JsonDict
from brimful.data.batches import Batch, MicroBatch
from brimful.model.build import build
from brimful.model.step_hooks import StepHooks
from brimful.recipe import Recipe
from brimful.training import spikes
from brimful.training.divergence import ROLLBACKS_BEFORE_STOP
from brimful.training.loop import Parts, train
from brimful.training.meter import Meter
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.optim import build_optimizer, loss_factor
from brimful.training.precision import Precision
from brimful.training.state import Progress, restore, snapshot_of
from brimful.training.step_checks import ReplayCheck

CPU = torch.device("cpu")
FP32 = Precision("fp32")
METHODS = ("pretrain", "feedback")
"""Those that read plain text and train a decoder."""


class RaggedSequences:
    """Sequences of very different lengths, padded; sample i depends on i alone."""

    def batch(self, first_sample: int, count: int) -> Batch:
        inputs, targets = torch.zeros(count, 24, dtype=torch.int64), torch.full((count, 24), -100)
        for row in range(count):
            generator = torch.Generator().manual_seed(first_sample + row)
            length = int(torch.randint(2, 25, (), generator=generator))
            ids = torch.randint(0, 50, (length + 1,), generator=generator)
            inputs[row, :length], targets[row, :length] = ids[:-1], ids[1:]
        return Batch(inputs, targets)


class World:
    """The loop's parts around a tiny model, everything else switchable."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        micro_batches: tuple[int, ...] = (8,),
        sequences: Any = None,
    ) -> None:
        self.model = build(recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU)
        self.optimizer = build_optimizer(self.model, recipe.optimizer, variant="fused")
        self.journal = Journal(folder / "metrics.jsonl")
        self.saved: list[Any] = []
        self.evaluations: list[int] = []
        self.stop_after: int | None = None
        self.progress = Progress.fresh(FP32, CPU)
        network = Network(self.model, hidden_states_of(self.model), loss_chunk=16)
        self.parts = Parts(
            recipe=recipe,
            network=network,
            method=find_method(recipe.method).with_options(recipe.loss_options),
            optimizer=self.optimizer,
            precision=FP32,
            device=CPU,
            sequences=sequences or RaggedSequences(),
            micro_batches=micro_batches,
            total_steps=recipe.training.steps or 0,
            evaluate_every=4,
            meter=Meter(self.journal, [], device=CPU, total_steps=12),
            evaluate=self._evaluate,
            save=self._save,
            restore_last_good=self._restore,
            checkpoint_due=lambda progress: progress.step > 0 and progress.step % 4 == 0,
            should_stop=lambda progress: (
                self.stop_after is not None and len(self.saved) >= self.stop_after
            ),
        )

    def run(self) -> Progress:
        return train(self.parts, self.progress)

    def records(self, kind: str) -> list[JsonDict]:
        return [record for record in read_journal(self.journal.path) if record["kind"] == kind]

    def _evaluate(self) -> Json:
        assert not self.model.training
        self.evaluations.append(1)
        return {"split": "validation", "loss": 5.0 - len(self.evaluations)}

    def _save(self, progress: Progress) -> None:
        snapshot = snapshot_of(self.model, self.optimizer, progress, identity={}, journal_bytes=0)
        tensors = {
            file: {name: tensor.clone() for name, tensor in group.items()}
            for file, group in snapshot.tensors.items()
        }
        self.saved.append(type(snapshot)(snapshot.step, tensors, snapshot.state, {}))

    def _restore(self) -> Progress:
        return restore(self.saved[-1], self.model, self.optimizer, CPU)


MakeWorld = Callable[..., World]


@pytest.fixture
def world(tiny: MakeRecipe, tmp_path: Path) -> Iterator[MakeWorld]:
    worlds: list[World] = []

    def make(*overrides: str, **options: Any) -> World:
        folder = tmp_path / f"world{len(worlds)}"
        folder.mkdir()
        worlds.append(World(tiny("sequence_length=24", *overrides), folder, **options))
        return worlds[-1]

    yield make
    for made in worlds:
        made.journal.close()


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _gradient(made: World) -> torch.Tensor:
    """The gradient that the first optimizer step is given."""
    captured: list[torch.Tensor] = []
    made.optimizer.register_step_pre_hook(
        lambda *_: captured.append(
            torch.cat(
                [
                    parameter.grad.flatten().clone()
                    for parameter in made.parts.parameters
                    if parameter.grad is not None
                ]
            )
        )
    )
    made.run()
    return captured[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("micro_batches", [(4, 4), (2, 2, 2, 2), (1,) * 8, (3, 3, 2)])
def test_accumulation_on_ragged_sequences_gives_the_gradient_of_the_whole_batch(
    world: MakeWorld, micro_batches: tuple[int, ...], method: str
) -> None:
    whole = _gradient(world("training.steps=1", f"method={method}"))
    split = _gradient(world("training.steps=1", f"method={method}", micro_batches=micro_batches))
    assert whole.abs().max() > 0
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-6 * float(whole.abs().max()))


def test_the_gradient_is_that_of_the_mean_over_target_tokens(world: MakeWorld) -> None:
    made = world("training.steps=1", micro_batches=(3, 5))
    batch = made.parts.sequences.batch(0, 8)
    logits = made.model(input_ids=batch.inputs_BT).logits
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=-100
    )
    expected = torch.cat(
        [grad.flatten() for grad in torch.autograd.grad(loss, made.parts.parameters)]
    )
    carried = loss_factor(torch.ones(()), batch.num_target_tokens) * batch.num_target_tokens
    torch.testing.assert_close(_gradient(made) / carried, expected, rtol=1e-5, atol=1e-7)
    assert made.records("step")[0]["loss"] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("micro_batches", [(8,), (3, 5)], ids=str)
def test_what_is_added_to_the_loss_counts_once_per_update_by_its_number_and_is_not_told(
    world: MakeWorld, micro_batches: tuple[int, ...]
) -> None:
    """Also where memory runs out and an update is done again."""
    plain, penalised = (
        world("training.steps=4", "optimizer.learning_rate=1e-12", micro_batches=micro_batches)
        for _ in range(2)
    )
    name, numbers = "model.layers.0.mlp.up_proj.weight", list[int]()
    weights = [dict(made.model.named_parameters())[name] for made in (plain, penalised)]
    gradients: list[list[torch.Tensor]] = [[], []]
    for made, weight, found in zip((plain, penalised), weights, gradients, strict=True):
        made.optimizer.register_step_pre_hook(
            lambda *_, weight=weight, found=found: found.append(weight.grad.clone())
        )

    def penalty(step: int) -> torch.Tensor:
        numbers.append(step)
        return (step + 1) * weights[1].sum()

    SmallDevice(penalised, lambda call, sequences: call == 1)
    penalised.parts = replace(penalised.parts, hooks=StepHooks(penalty=penalty))
    plain.run()
    penalised.run()

    assert numbers == [0, 1, 2, 3]
    for step, (without, with_it) in enumerate(zip(*gradients, strict=True)):
        tokens = penalised.parts.sequences.batch(8 * step, 8).num_target_tokens
        carried = loss_factor(torch.ones(()), tokens) * tokens
        torch.testing.assert_close(
            (with_it - without) / carried, torch.full_like(without, step + 1), rtol=1e-4, atol=1e-5
        )
    told, others = (
        [record["loss"] for record in made.records("step")] for made in (penalised, plain)
    )
    assert told == pytest.approx(others, rel=1e-6)


def test_each_update_is_prepared_by_its_number_before_its_sequences_are_read(
    world: MakeWorld,
) -> None:
    """Twice the same where it is done again."""
    made, told = world("training.steps=3", micro_batches=(5, 3)), list[Any]()
    SmallDevice(made, lambda call, sequences: call == 3)
    loss_sum = made.parts.method.loss_sum
    noted = replace(
        made.parts.method,
        loss_sum=lambda network, micro: (told.append("pass"), loss_sum(network, micro))[1],
    )
    made.parts = replace(made.parts, hooks=StepHooks(told.append), method=noted)

    made.run()

    assert told == [0, "pass", "pass", 1, "pass", 1, *["pass"] * 4, 2, *["pass"] * 4]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    world: MakeWorld,
) -> None:
    first, second, other = world(), world(), world("seed=7")
    for made in (first, second, other):
        made.run()
    assert torch.equal(_weights(first.model), _weights(second.model))
    assert not torch.equal(_weights(first.model), _weights(other.model))


@pytest.mark.parametrize("workers", [0, 3])
def test_however_many_threads_make_batches_ahead_the_run_is_the_same_bit_for_bit(
    world: MakeWorld, workers: int
) -> None:
    one, other = world(), world()
    other.parts = dataclasses.replace(other.parts, loader_workers=workers)

    one.run()
    other.run()

    assert torch.equal(_weights(one.model), _weights(other.model))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_while_a_batch_is_made_ahead_ends_the_run(
    workers: int, world: MakeWorld, refuses: Refuses
) -> None:
    class Torn(RaggedSequences):
        def batch(self, first_sample: int, count: int) -> Batch:
            if first_sample >= 5 * count:
                raise OSError("the tokens cannot be read")
            return super().batch(first_sample, count)

    made = world("training.steps=10", sequences=Torn())
    made.parts = replace(made.parts, loader_workers=workers)

    with refuses(OSError):
        made.run()

    made.parts.meter.flush()
    assert [record["step"] for record in made.records("step")] == [1, 2, 3, 4, 5]


def test_every_step_is_recorded_with_finite_numbers_and_the_loss_falls(
    world: MakeWorld,
) -> None:
    class Same(RaggedSequences):
        def batch(self, first_sample: int, count: int) -> Batch:
            return super().batch(0, count)

    made = world(sequences=Same())
    made.run()
    records = made.records("step")
    assert [record["step"] for record in records] == list(range(1, 13))
    assert records[-1]["loss"] < 0.8 * records[0]["loss"]
    assert all(
        record["skipped"] == 0 and record["grad_norm"] > 0 and record["learning_rate"] > 0
        for record in records
    )


def test_evaluation_and_checkpoints_come_at_their_steps_and_at_the_end(
    world: MakeWorld,
) -> None:
    made = world("training.steps=10")
    progress = made.run()
    assert [record["step"] for record in made.records("evaluation")] == [4, 8, 10]
    assert [snapshot.step for snapshot in made.saved] == [4, 8, 10]
    assert (progress.best_step, progress.best_loss) == (10, 2.0)


def test_it_stops_when_as_many_evaluations_in_a_row_as_it_has_patience_for_were_no_better(
    world: MakeWorld,
) -> None:
    made = world("training.steps=40", "evaluation.patience=2")
    losses = iter([3.0, 3.5, 2.0, 2.5, 2.0, 1.0])
    made.parts = replace(made.parts, evaluate=lambda: {"loss": 0.0, "objective": next(losses)})

    progress = made.run()

    assert (progress.step, progress.best_step, progress.best_loss) == (20, 12, 2.0)
    assert [snapshot.step for snapshot in made.saved][-1] == 20
    assert made.run().step == 20  # where it stopped it stays


def test_every_group_has_its_share_of_the_learning_rate(world: MakeWorld) -> None:
    made = world(
        "optimizer.layer_decay=0.5",
        "training.steps=4",
        "optimizer.warmup=0",
        "optimizer.schedule=constant",
    )
    made.run()

    assert sorted({group["lr"] for group in made.optimizer.param_groups}) == pytest.approx(
        [1e-2 / 8, 1e-2 / 4, 1e-2 / 2, 1e-2]
    )
    assert {record["learning_rate"] for record in made.records("step")} == {1e-2}


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_and_restored_loop_ends_bit_for_bit_where_an_undisturbed_one_does(
    world: MakeWorld, method: str
) -> None:
    overrides = ("model.architecture=gpt2", "model.dropout=0.2", f"method={method}")
    undisturbed, stopped = world(*overrides), world(*overrides)
    torch.manual_seed(0)
    undisturbed.model.train()
    undisturbed.run()
    torch.manual_seed(0)
    stopped.model.train()
    stopped.stop_after = 1
    assert stopped.run().step == 4
    continued = world(*overrides)
    torch.manual_seed(99)
    continued.model.train()
    continued.progress = restore(stopped.saved[-1], continued.model, continued.optimizer, CPU)
    continued.run()
    assert torch.equal(_weights(undisturbed.model), _weights(continued.model))
    assert undisturbed.records("step")[-1]["loss"] == continued.records("step")[-1]["loss"]


def _poison(made: World, bad_samples: range, factor: float = math.nan) -> None:
    """Multiply the loss of every batch that starts in `bad_samples`."""
    real = made.parts.method.loss_sum
    batch_of = made.parts.sequences.batch

    def batch(first: int, count: int) -> Batch:
        made_batch = batch_of(first, count)
        if first in bad_samples:
            made_batch.inputs_BT[0, 0] = 49
            made_batch.inputs_BT[0, 1] = 49
        else:
            made_batch.inputs_BT[0, 0] = 1
        return made_batch

    def loss_sum(network: Network, micro: MicroBatch) -> torch.Tensor:
        loss = real(network, micro)
        return (
            loss * factor
            if bool(micro.inputs_BT[0, 0] == 49) and bool(micro.inputs_BT[0, 1] == 49)
            else loss
        )

    object.__setattr__(
        made.parts,
        "method",
        type(made.parts.method)(loss_sum=loss_sum),
    )
    object.__setattr__(made.parts.sequences, "batch", batch)


def test_one_bad_batch_is_skipped_counted_and_logged_with_its_true_value(
    world: MakeWorld,
) -> None:
    made = world()
    _poison(made, range(16, 17))
    made.run()
    records = made.records("step")
    assert (records[2]["loss"], records[2]["nonfinite"]["loss"]) == (None, "nan")
    assert [record["skipped"] for record in records] == [0, 0] + [1] * 10
    assert torch.isfinite(_weights(made.model)).all()


def test_repeated_bad_batches_roll_back_and_training_goes_on_behind_them(
    world: MakeWorld,
) -> None:
    made = world("training.steps=30")
    _poison(made, range(8 * 18, 8 * 27))
    progress = made.run()
    assert (progress.step, progress.rollbacks) == (30, 1)
    assert (
        progress.samples_consumed == (30 + 25 - 16) * 8
    )  # the 9 steps since the checkpoint of step 16 are made up for
    assert any("rolled back to step" in record["message"] for record in made.records("event"))
    assert torch.isfinite(_weights(made.model)).all()


def test_when_every_batch_is_bad_training_stops_with_a_diagnosis(
    world: MakeWorld,
) -> None:
    made = world("training.steps=200")
    _poison(made, range(8 * 5, 8 * 10_000))
    with pytest.raises(
        TrainingStopped, match=rf"after {ROLLBACKS_BEFORE_STOP} rollbacks.*learning rate"
    ):
        made.run()
    assert torch.isfinite(_weights(made.model)).all()


def test_a_validation_loss_that_is_no_number_rolls_back_and_training_goes_on(
    world: MakeWorld,
    snapshot: SnapshotAssertion,
) -> None:
    made = world()
    losses = iter([4.0, float("nan"), 3.0, 2.0])
    evaluate = lambda: {"split": "validation", "loss": next(losses)}  # noqa: E731
    object.__setattr__(made.parts, "evaluate", evaluate)
    progress = made.run()
    assert (progress.step, progress.rollbacks, progress.best_loss) == (12, 1, 2.0)
    assert progress.samples_consumed == (12 + 4) * 8  # the steps since the checkpoint of step 4
    assert [snapshot.step for snapshot in made.saved] == [4, 4, 8, 12]
    assert [record["loss"] for record in made.records("evaluation")] == [4.0, None, 3.0, 2.0]
    assert made.records("event")[0]["message"] == snapshot


def test_a_run_that_learns_nothing_in_its_few_steps_is_not_finished(
    world: MakeWorld,
    refuses: Refuses,
) -> None:
    made = world("training.steps=3")
    _poison(made, range(0, 8 * 100))
    object.__setattr__(made.parts, "restore_last_good", lambda: None)
    with refuses(TrainingStopped):
        made.run()
    assert made.saved == []


SPIKE_AT = 13
"""The step whose loss is a million times too large."""


@pytest.fixture
def with_spike(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], World]:
    """`with_spike(policy)` is a world of 20 steps; eight steps are the usual ones."""
    monkeypatch.setattr(spikes, "WINDOW", 8)

    def make(policy: str) -> World:
        torch.manual_seed(0)
        made = world("training.steps=20", f"optimizer.spikes={policy}")
        object.__setattr__(
            made.parts,
            "meter",
            Meter(made.journal, [], device=CPU, total_steps=20, spike_policy=policy),
        )
        _poison(made, range(8 * (SPIKE_AT - 1), 8 * SPIKE_AT), factor=1e6)
        return made

    return make


@pytest.mark.parametrize(
    ("policy", "found", "skipped"), [("note", 1, 0), ("skip", 1, 1), ("ignore", 0, 0)]
)
def test_a_spike_is_told_and_left_out_if_the_recipe_says_so(
    with_spike: Callable[[str], World], policy: str, found: int, skipped: int
) -> None:
    made = with_spike(policy)
    before: list[torch.Tensor] = []
    made.optimizer.register_step_pre_hook(lambda *_: before.append(_weights(made.model).clone()))
    made.run()
    last = made.records("step")[-1]
    assert (last["spikes"], last["skipped"]) == (found, skipped)
    is_left_out = torch.equal(before[SPIKE_AT - 1], before[SPIKE_AT])
    assert is_left_out == (policy == "skip")
    messages = [record["message"] for record in made.records("event")]
    assert [f"a spike at step {SPIKE_AT}: " in message for message in messages] == [True] * found


def test_a_spike_rolls_back_to_the_checkpoint_before_it_if_the_recipe_says_so(
    with_spike: Callable[[str], World],
) -> None:
    made = with_spike("rollback")
    progress = made.run()
    assert (progress.step, progress.rollbacks) == (20, 1)
    assert [snapshot.step for snapshot in made.saved] == [4, 8, 12, 12, 16, 20]
    assert progress.samples_consumed == (20 + 8) * 8  # up to step 20, whose sequences were read
    assert any("rolled back to step 12" in record["message"] for record in made.records("event"))
    assert not progress.is_in_doubt


def test_a_spike_before_the_first_checkpoint_is_only_left_out(
    with_spike: Callable[[str], World],
) -> None:
    made = with_spike("rollback")
    object.__setattr__(made.parts, "checkpoint_due", lambda progress: False)
    object.__setattr__(made.parts, "evaluate_every", 20)
    object.__setattr__(made.parts, "restore_last_good", lambda: None)
    progress = made.run()
    assert (progress.step, progress.rollbacks, progress.samples_consumed) == (20, 0, 20 * 8)
    assert any("only its update was left out" in each["message"] for each in made.records("event"))
    assert [snapshot.step for snapshot in made.saved] == [20]


def test_what_decides_about_spikes_is_in_the_checkpoint(with_spike: Callable[[str], World]) -> None:
    """Stopped before the spike and after it, the run ends bit for bit like an undisturbed one."""
    undisturbed = with_spike("skip")
    undisturbed.run()
    for stop_after in (3, 4):
        stopped, continued = with_spike("skip"), with_spike("skip")
        stopped.stop_after = stop_after
        assert stopped.run().step == 4 * stop_after
        stored = stopped.saved[-1]
        stored = replace(stored, state=json.loads(json.dumps(stored.state, allow_nan=False)))
        continued.progress = restore(stored, continued.model, continued.optimizer, CPU)
        continued.run()
        assert torch.equal(_weights(undisturbed.model), _weights(continued.model))
        assert undisturbed.records("step")[-1]["spikes"] == 1
        assert continued.records("step")[-1]["spikes"] == 1


def test_steps_that_are_computed_twice_change_nothing(world: MakeWorld) -> None:
    """With dropout: the second computation draws what the first one drew."""
    ends = []
    for every in (None, 3):
        torch.manual_seed(0)
        made = world("model.architecture=gpt2", "model.dropout=0.2", micro_batches=(4, 4))
        made.model.train()
        calls = _count_passes(made)
        object.__setattr__(made.parts, "replay", ReplayCheck(every, CPU, pytest.fail))
        made.run()
        ends.append((_weights(made.model), len(calls)))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[1][1] - ends[0][1] == 3 * 2  # steps 4, 7 and 10 of 12, in two passes


def _count_passes(made: World) -> list[None]:
    method, calls = made.parts.method, []

    def loss_sum(network: Network, micro: MicroBatch) -> torch.Tensor:
        calls.append(None)
        return method.loss_sum(network, micro)

    object.__setattr__(made.parts, "method", replace(method, loss_sum=loss_sum))
    return calls


def test_one_wrong_bit_in_a_gradient_ends_the_run_before_the_step_is_taken(
    world: MakeWorld,
) -> None:
    made = world()
    object.__setattr__(made.parts, "replay", ReplayCheck(3, CPU, pytest.fail))
    name, parameter = next(iter(made.model.named_parameters()))
    calls = 0

    def flip_a_bit(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls != 9:  # the second computation of step 7; step 4 was computed twice, too
            return gradient
        changed = gradient.clone()
        changed.view(torch.int32).flatten()[0] ^= 1
        return changed

    parameter.register_hook(flip_a_bit)
    with pytest.raises(TrainingStopped, match=rf"step 7.*\({name}\).*alike is 4"):
        made.run()
    assert [snapshot.step for snapshot in made.saved] == [4]


OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.56 GiB."
)


class SmallDevice:
    """Runs out of memory where `fails(call, sequences)` says so, in the forward pass or in the
    middle of the backward pass.

    Attributes:
        seen: Inputs of every update's sequences, in the order in which the update that counts saw
            them.
    """

    def __init__(
        self, made: World, fails: Callable[[int, int], bool], place: str = "forward"
    ) -> None:
        self._method, self._fails, self._place = made.parts.method, fails, place
        self._calls, self._step_inputs, self._step_sizes = 0, list[torch.Tensor](), list[int]()
        self._failed: StorageWeakRef | None = None
        self.seen: list[torch.Tensor] = []
        self.sizes: list[list[int]] = []
        made.parts = replace(made.parts, method=replace(made.parts.method, loss_sum=self._loss_sum))
        made.optimizer.register_step_post_hook(self._note_update)

    def _loss_sum(self, network: Network, micro: MicroBatch) -> torch.Tensor:
        assert self._failed is None or self._failed.expired(), (
            "what the failed pass held is still there"
        )
        self._calls += 1
        self._step_inputs += micro.inputs_BT.unbind()
        self._step_sizes.append(len(micro.inputs_BT))
        fails = self._fails(self._calls, len(micro.inputs_BT))
        if fails and self._place == "forward":
            self._fail()
        loss = self._method.loss_sum(network, micro)
        if fails:
            hidden = network.hidden_states(micro)
            self._failed = StorageWeakRef(hidden.untyped_storage())
            hidden.register_hook(self._fail)
            loss = loss + 0 * hidden.sum()
        return loss

    def _fail(self, *_: object) -> None:
        self._step_inputs, self._step_sizes = [], []
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    def _note_update(self, *_: object) -> None:
        self.seen += self._step_inputs
        self.sizes.append(self._step_sizes)
        self._step_inputs, self._step_sizes = [], []


EPS = "optimizer.eps=1e-6"
"""AdamW divides by the gradient's own size: with its usual 1e-8, rounding of gradients next to zero
becomes an update of 1e-5 of the weights, as between any two undisturbed runs of different
micro-batches.
"""


def _assert_same_up_to_rounding(model: nn.Module, expected: nn.Module) -> None:
    """fp32 rounding of sums in another order, carried through 20 updates at a learning rate of
    1e-2.
    """
    torch.testing.assert_close(_weights(model), _weights(expected), rtol=1e-5, atol=5e-6)


def never(call: int, sequences: int) -> bool:
    """A device that is large enough."""
    return False


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize(
    ("micro_batches", "method"),
    [((8,), "pretrain"), ((5, 3), "pretrain"), ((5, 3), "feedback")],
    ids=str,
)
@pytest.mark.long_but("(5, 3)-pretrain-forward", "(8,)-pretrain-backward")
def test_out_of_memory_at_random_passes_changes_neither_weights_nor_the_order_of_sequences(
    world: MakeWorld, micro_batches: tuple[int, ...], method: str, place: str
) -> None:
    undisturbed, disturbed = (
        world("training.steps=20", f"method={method}", EPS, micro_batches=micro_batches)
        for _ in range(2)
    )
    expected = SmallDevice(undisturbed, never)
    at = random.Random(f"{micro_batches}{place}").sample(range(1, 20), 2)
    device = SmallDevice(disturbed, lambda call, _: call in at, place)
    undisturbed.run()
    progress = disturbed.run()
    assert (progress.step, progress.samples_consumed) == (20, 160)
    assert torch.equal(torch.stack(device.seen), torch.stack(expected.seen))
    _assert_same_up_to_rounding(disturbed.model, undisturbed.model)
    losses, others = (
        [record["loss"] for record in made.records("step")] for made in (disturbed, undisturbed)
    )
    assert losses == pytest.approx(others, rel=1e-6)
    assert len(disturbed.records("out_of_memory")) == 2


def test_smaller_micro_batches_hold_for_the_rest_of_the_run_and_are_recorded_and_remembered(
    world: MakeWorld,
) -> None:
    made, told = world("training.steps=5", micro_batches=(5, 3)), []
    made.parts = replace(made.parts, remember=told.append)
    device = SmallDevice(made, lambda call, sequences: call > 4 and sequences > 2, "backward")
    made.run()
    assert device.sizes[:2] == [[5, 3], [5, 3]]
    assert [record["from"] for record in told] == [[5, 3], [3, 2, 2, 1]]
    assert [record["to"] for record in told] == [[3, 2, 2, 1], [2, 1, 1, 1, 1, 1, 1]]
    assert device.sizes[2:] == [[2, 1, 1, 1, 1, 1, 1]] * 3
    assert told == made.records("out_of_memory")
    common = {
        "kind": "out_of_memory",
        "step": 3,
        "phase": "training",
        "where": "backward pass (tried to allocate 2.00 GiB)",
    }
    assert all(record == {**record, **common} for record in told)


def test_with_dropout_a_disturbed_run_is_bit_for_bit_one_that_changes_to_the_same_micro_batches_by_itself(
    world: MakeWorld,
) -> None:
    """Masks depend on the micro-batches, so that the run with the larger ones is another; the
    generators are wound back, so that this one is not.
    """
    dropout = ("training.steps=6", "model.architecture=gpt2", "model.dropout=0.2")
    disturbed, first, second = (
        world(*dropout),
        world(*dropout, micro_batches=(8,)),
        world(*dropout, micro_batches=(4, 4)),
    )
    SmallDevice(disturbed, lambda call, sequences: call == 5, "backward")
    torch.manual_seed(0)
    disturbed.model.train()
    disturbed.run()
    torch.manual_seed(0)
    first.model.train()
    first.stop_after = 1
    assert first.run().step == 4
    second.progress = restore(first.saved[-1], second.model, second.optimizer, CPU)
    second.model.train()
    second.run()
    assert disturbed.records("out_of_memory")[0]["step"] == 5
    assert torch.equal(_weights(disturbed.model), _weights(second.model))


def test_when_one_sequence_does_not_fit_training_stops_and_says_what_needs_less(
    world: MakeWorld,
) -> None:
    made = world()
    device = SmallDevice(made, lambda call, _: call > 2)
    said = (
        r"forward pass \(tried to allocate 2.00 GiB\) of step 3, with one"
        r" sequence.*plan.recompute=true.*below 16.*sequence_length below 24"
    )
    with pytest.raises(TrainingStopped, match=said):
        made.run()
    assert [max(record["to"]) for record in made.records("out_of_memory")] == [4, 2, 1]
    assert len(device.sizes) == 2
    assert [snapshot.step for snapshot in made.saved] == [2]


def test_out_of_memory_before_the_update_writes_repeats_the_step_with_the_same_guard(
    world: MakeWorld,
) -> None:
    undisturbed, disturbed = (world("training.steps=5", EPS) for _ in range(2))
    count = 0

    def fail_once(*_: object) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    disturbed.optimizer.register_step_pre_hook(fail_once)
    undisturbed.run()
    progress = disturbed.run()
    assert disturbed.records("out_of_memory")[0]["where"].startswith("optimizer update")
    assert progress.guard.to_list() == pytest.approx(undisturbed.progress.guard.to_list(), rel=1e-6)
    _assert_same_up_to_rounding(disturbed.model, undisturbed.model)


def test_a_repeated_fp16_step_begins_with_the_same_loss_scale(world: MakeWorld) -> None:
    fp16, guards = Precision("fp16"), []
    for fails in (never, lambda call, _: call in (2, 7)):
        made = world("training.steps=6")
        made.parts, made.progress = replace(made.parts, precision=fp16), Progress.fresh(fp16, CPU)
        SmallDevice(made, fails, "backward")
        guards.append(made.run().guard.to_list())
    assert guards[1] == pytest.approx(guards[0], rel=1e-2)
    assert guards[1][:4] == guards[0][:4]
    assert guards[0][0] > 1


def test_other_errors_of_a_step_are_not_repeated(world: MakeWorld) -> None:
    made = world()
    made.optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert made.records("out_of_memory") == []


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.long
def test_out_of_memory_in_compiled_blocks_ends_where_an_undisturbed_run_does(
    world: MakeWorld,
) -> None:
    undisturbed, disturbed = (world("training.steps=3", "model.layers=1", EPS) for _ in range(2))
    for block in disturbed.model.base_model.layers:
        block.compile(backend="aot_eager", dynamic=False)
    SmallDevice(disturbed, lambda call, sequences: call > 1 and sequences > 2, "backward")
    undisturbed.run()
    disturbed.run()
    assert len(disturbed.records("out_of_memory")) == 2
    _assert_same_up_to_rounding(disturbed.model, undisturbed.model)


def _hungry(made: World) -> None:
    """Let every pass hold 64 MiB per sequence, which it never touches, beside what it needs."""
    method = made.parts.method

    def loss_sum(network: Network, micro: MicroBatch) -> torch.Tensor:
        held = torch.empty(len(micro.inputs_BT) << 26, dtype=torch.uint8)
        return method.loss_sum(network, micro) + 0 * held[0]

    made.parts = replace(made.parts, method=replace(method, loss_sum=loss_sum))


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits the address space of a forked process"
)
def test_a_host_that_really_refuses_memory_is_survived(
    world: MakeWorld, snapshot: SnapshotAssertion
) -> None:
    """The limit leaves room for a quarter of the batch, and 1 GiB for all that threads reserve."""
    free, limited = (
        world("training.steps=2", "batch.sequences=64", micro_batches=(64,)) for _ in range(2)
    )
    _hungry(limited)
    child = os.fork()
    if child == 0:
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + (2 << 30), resource.RLIM_INFINITY))
        try:
            limited.run()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    free.run()
    events = limited.records("out_of_memory")
    assert events[0]["from"] == [64]
    assert events[0]["where"] == snapshot
    ours, others = ([record["loss"] for record in made.records("step")] for made in (limited, free))
    assert ours == pytest.approx(others, rel=1e-5)


def test_an_evaluation_that_cannot_be_done_loses_no_step(world: MakeWorld) -> None:
    made = world()

    def evaluate() -> Json:
        raise RequestError("out of memory: not even one window can be scored.")

    made.parts = replace(made.parts, evaluate=evaluate, checkpoint_due=lambda progress: False)
    said = (
        "evaluation after step 4 failed: out of memory: not even one window can be scored. What was"
        " trained so far is kept."
    )
    with pytest.raises(TrainingStopped, match=said):
        made.run()
    assert [snapshot.step for snapshot in made.saved] == [4]


def test_smaller_batches_of_an_evaluation_are_recorded(world: MakeWorld) -> None:
    made = world("training.steps=4")
    made.parts = replace(
        made.parts, evaluate=lambda: {"split": "validation", "loss": 1.0, "batch_sizes": (16, 8, 4)}
    )
    made.run()
    common = {"kind": "out_of_memory", "step": 4, "phase": "evaluation", "where": "validation"}
    assert made.records("out_of_memory") == [
        {**common, "from": [16], "to": [8]},
        {**common, "from": [8], "to": [4]},
    ]
    assert "batch_sizes" not in made.records("evaluation")[0]
