"""The loop: exact accumulation, same seed same run, bad steps, and what happens between steps."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from brimful.base.errors import TrainingStopped
from brimful.base.rundir import Journal, read_journal
from brimful.data.sequences import Batch
from brimful.model.build import build
from brimful.recipe import Recipe
from brimful.training.loop import ROLLBACKS_BEFORE_STOP, Parts, train
from brimful.training.meter import Meter
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.optim import build_optimizer
from brimful.training.precision import Precision
from brimful.training.state import Progress, restore, snapshot_of

CPU = torch.device("cpu")
FP32 = Precision("fp32")


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

    def __init__(self, recipe: Recipe, folder: Path, micro_batches: tuple[int, ...] = (8,), sequences: Any = None) -> None:
        self.model = build(recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU)
        self.optimizer = build_optimizer(self.model, recipe.optimizer, fused=True)
        self.journal = Journal(folder / "metrics.jsonl")
        self.saved: list[Any] = []
        self.evaluations: list[int] = []
        self.stop_after: int | None = None
        self.progress = Progress.fresh(FP32, CPU)
        network = Network(self.model, hidden_states_of(self.model), loss_chunk=16)
        self.parts = Parts(
            recipe=recipe, network=network, method=find_method("pretrain"), optimizer=self.optimizer, precision=FP32, device=CPU,
            sequences=sequences or RaggedSequences(), micro_batches=micro_batches, total_steps=recipe.training.steps or 0, evaluate_every=4,
            meter=Meter(self.journal, [], device=CPU, total_steps=12), evaluate=self._evaluate, save=self._save,
            restore_last_good=self._restore, checkpoint_due=lambda progress: progress.step > 0 and progress.step % 4 == 0,
            should_stop=lambda: self.stop_after is not None and len(self.saved) >= self.stop_after,
        )  # fmt: skip

    def run(self) -> Progress:
        return train(self.parts, self.progress)

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in read_journal(self.journal.path) if record["kind"] == kind]

    def _evaluate(self) -> Mapping[str, Any]:
        assert not self.model.training
        self.evaluations.append(1)
        return {"split": "validation", "loss": 5.0 - len(self.evaluations)}

    def _save(self, progress: Progress) -> None:
        snapshot = snapshot_of(self.model, self.optimizer, progress, identity={}, journal_bytes=0)
        tensors = {file: {name: tensor.clone() for name, tensor in group.items()} for file, group in snapshot.tensors.items()}
        self.saved.append(type(snapshot)(snapshot.step, tensors, snapshot.state, {}))

    def _restore(self) -> Progress:
        return restore(self.saved[-1], self.model, self.optimizer, CPU)


@pytest.fixture
def world(tiny: Callable[..., Recipe], tmp_path: Path) -> Iterator[Callable[..., World]]:
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
        lambda *_: captured.append(torch.cat([parameter.grad.flatten().clone() for parameter in made.parts.parameters if parameter.grad is not None]))
    )
    made.run()
    return captured[0]


@pytest.mark.parametrize("micro_batches", [(4, 4), (2, 2, 2, 2), (1,) * 8, (3, 3, 2)])
def test_accumulation_on_ragged_sequences_gives_the_gradient_of_the_whole_batch(world: Callable[..., World], micro_batches: tuple[int, ...]) -> None:
    whole = _gradient(world("training.steps=1"))
    split = _gradient(world("training.steps=1", micro_batches=micro_batches))
    assert whole.abs().max() > 0
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-6 * float(whole.abs().max()))


def test_the_gradient_is_that_of_the_mean_over_target_tokens(world: Callable[..., World]) -> None:
    made = world("training.steps=1", micro_batches=(3, 5))
    batch = made.parts.sequences.batch(0, 8)
    logits = made.model(input_ids=batch.inputs_BT).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=-100)
    expected = torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, made.parts.parameters)])
    torch.testing.assert_close(_gradient(made), expected, rtol=1e-5, atol=1e-7)
    assert made.records("step")[0]["loss"] == pytest.approx(loss.item(), rel=1e-6)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(world: Callable[..., World]) -> None:
    first, second, other = world(), world(), world("seed=7")
    for made in (first, second, other):
        made.run()
    assert torch.equal(_weights(first.model), _weights(second.model))
    assert not torch.equal(_weights(first.model), _weights(other.model))


def test_every_step_is_recorded_with_finite_numbers_and_the_loss_falls(world: Callable[..., World]) -> None:
    class Same(RaggedSequences):
        def batch(self, first_sample: int, count: int) -> Batch:
            return super().batch(0, count)

    made = world(sequences=Same())
    made.run()
    records = made.records("step")
    assert [record["step"] for record in records] == list(range(1, 13))
    assert records[-1]["loss"] < 0.8 * records[0]["loss"]
    assert all(record["skipped"] == 0 and record["grad_norm"] > 0 and record["learning_rate"] > 0 for record in records)


def test_evaluation_and_checkpoints_come_at_their_steps_and_at_the_end(world: Callable[..., World]) -> None:
    made = world("training.steps=10")
    progress = made.run()
    assert [record["step"] for record in made.records("evaluation")] == [4, 8, 10]
    assert [snapshot.step for snapshot in made.saved] == [4, 8, 10]
    assert (progress.best_step, progress.best_loss) == (10, 2.0)


def test_a_stopped_and_restored_loop_ends_bit_for_bit_where_an_undisturbed_one_does(world: Callable[..., World]) -> None:
    undisturbed, stopped = world("model.architecture=gpt2", "model.dropout=0.2"), world("model.architecture=gpt2", "model.dropout=0.2")
    torch.manual_seed(0)
    undisturbed.model.train()
    undisturbed.run()
    torch.manual_seed(0)
    stopped.model.train()
    stopped.stop_after = 1
    assert stopped.run().step == 4
    continued = world("model.architecture=gpt2", "model.dropout=0.2")
    torch.manual_seed(99)
    continued.model.train()
    continued.progress = restore(stopped.saved[-1], continued.model, continued.optimizer, CPU)
    continued.run()
    assert torch.equal(_weights(undisturbed.model), _weights(continued.model))
    assert undisturbed.records("step")[-1]["loss"] == continued.records("step")[-1]["loss"]


def _poison(made: World, bad_samples: range) -> None:
    """Make the loss of every batch that starts in `bad_samples` NaN."""
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

    def loss_sum(network: Network, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        loss = real(network, inputs_BT, targets_BT)
        return loss * float("nan") if bool(inputs_BT[0, 0] == 49) and bool(inputs_BT[0, 1] == 49) else loss

    object.__setattr__(made.parts, "method", type(made.parts.method)(loss_sum=loss_sum, trains=made.parts.method.trains))
    object.__setattr__(made.parts.sequences, "batch", batch)


def test_one_bad_batch_is_skipped_counted_and_logged_with_its_true_value(world: Callable[..., World]) -> None:
    made = world()
    _poison(made, range(16, 17))
    made.run()
    records = made.records("step")
    assert (records[2]["loss"], records[2]["nonfinite"]["loss"]) == (None, "nan")
    assert [record["skipped"] for record in records] == [0, 0] + [1] * 10
    assert torch.isfinite(_weights(made.model)).all()


def test_repeated_bad_batches_roll_back_and_training_goes_on_behind_them(world: Callable[..., World]) -> None:
    made = world("training.steps=30")
    _poison(made, range(8 * 18, 8 * 27))
    progress = made.run()
    assert (progress.step, progress.rollbacks) == (30, 1)
    assert progress.samples_consumed == (30 + 25 - 16) * 8  # the 9 steps since the checkpoint of step 16 are made up for
    assert any("rolled back to step" in record["message"] for record in made.records("event"))
    assert torch.isfinite(_weights(made.model)).all()


def test_when_every_batch_is_bad_training_stops_with_a_diagnosis(world: Callable[..., World]) -> None:
    made = world("training.steps=200")
    _poison(made, range(8 * 5, 8 * 10_000))
    with pytest.raises(TrainingStopped, match=rf"after {ROLLBACKS_BEFORE_STOP} rollbacks.*learning rate"):
        made.run()
    assert torch.isfinite(_weights(made.model)).all()
