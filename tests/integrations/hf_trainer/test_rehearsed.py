"""A Trainer's own loop on tensors without values takes the memory of the real one."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from fixture_types import Make, Refuses
from peft import LoraConfig, get_peft_model
from torch.profiler import ProfilerActivity, profile

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.integrations.hf_trainer.batches import longest_batch
from brimful.integrations.hf_trainer.rehearsed import RehearsedStep, rehearse
from brimful.planning.trace import Trace
from brimful.rehearsal.training import without_garbage_collector
from measured_steps import read_profile, storage_bytes

JOBS: Mapping[str, JsonDict] = {
    "accumulated": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2},
    "recomputed in bf16": {"activation_checkpointing": True, "bf16": True},
    "without clipping, foreach": {"max_grad_norm": 0.0, "optim": "adamw_torch"},
}


def _traced(trainer: Any) -> Trace:
    passes = trainer.args.gradient_accumulation_steps
    batch = longest_batch(trainer, trainer.args.per_device_train_batch_size, passes)
    return rehearse(trainer, RehearsedStep(batch, passes, cuda=False, flash=False))


def _measured_bytes(trainer: Any) -> int:
    start_bytes = storage_bytes(trainer.model)
    with (
        without_garbage_collector(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        trainer.train()
    return int(read_profile(profiler, start_bytes).live_E().max())


@pytest.mark.parametrize("job", JOBS)
def test_the_peak_is_that_of_the_real_trainer(
    make_trainer: Make, small_model: Make, job: str
) -> None:
    trainer = make_trainer(small_model(hidden_size=64, vocab_size=512), **JOBS[job])
    predicted_bytes = int(_traced(trainer).live_E().max())

    assert predicted_bytes == pytest.approx(_measured_bytes(trainer), rel=0.01)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_on_padded_rows_too(make_trainer: Make, small_model: Make, rows: Make) -> None:
    model = small_model(hidden_size=64, vocab_size=512)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    trainer = make_trainer(adapted, rows(shortest=8), seed=1)
    trace = _traced(trainer)

    assert 0 < trace.trainable < trace.parameters
    assert int(trace.live_E().max()) == pytest.approx(_measured_bytes(trainer), rel=0.01)


def test_a_mask_that_hides_nothing_is_dropped_as_in_the_real_step(
    make_trainer: Make, rows: Make, padded: Make
) -> None:
    trainer = make_trainer()
    full = padded(rows(4))
    short = {**full, "attention_mask": full["attention_mask"].clone()}
    short["attention_mask"][0, -1] = False
    peaks = [
        int(rehearse(trainer, RehearsedStep(batch, 1, cuda=False, flash=False)).live_E().max())
        for batch in (full, short)
    ]

    assert peaks[0] < peaks[1]


def test_the_trainer_and_what_accelerate_shares_are_left_as_they_were(
    make_trainer: Make,
) -> None:
    trainer = make_trainer()
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    before = dict(vars(trainer)), dict(vars(trainer.args))
    shared = dict(AcceleratorState._shared_state), dict(GradientState._shared_state)
    random_state = torch.get_rng_state()
    _traced(trainer)

    assert (dict(vars(trainer)), dict(vars(trainer.args))) == before
    assert (AcceleratorState._shared_state, GradientState._shared_state) == shared
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(
        torch.equal(weights[name], each) for name, each in trainer.model.state_dict().items()
    )
    assert trainer.optimizer is None
    assert trainer.state.global_step == 0


def test_an_optimizer_of_ones_own_is_rehearsed_with_its_states(
    make_trainer: Make, small_model: Make
) -> None:
    states = []
    for momentum in (0.0, 0.9):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        trainer = make_trainer(model, options={"optimizers": (optimizer, None)})
        trace = _traced(trainer)
        states.append(int(trace.live_E()[trace.marks["between steps"]]))

    assert states[1] - states[0] == 4 * sum(each.numel() for each in model.parameters())


def test_eight_bit_states_take_a_quarter_but_for_embeddings(
    make_trainer: Make, small_model: Make
) -> None:
    model = {"hidden_size": 128, "vocab_size": 512}
    ends = []
    for optim in ("adamw_torch", "adamw_bnb_8bit"):
        trace = _traced(make_trainer(small_model(**model), optim=optim))
        ends.append(int(trace.live_E()[trace.marks["between steps"]]))
    made = small_model(**model)
    large = sum(each.numel() for each in made.parameters() if each.numel() >= 4096)
    in_bytes = large - made.get_input_embeddings().weight.numel()

    assert ends[0] - ends[1] == pytest.approx(2 * (4 - 1 - 4 / 256) * in_bytes, rel=0.01)


def test_a_step_that_reads_what_its_layers_computed_is_refused(
    make_trainer: Make,
    small_model: Make,
    refuses: Refuses,
) -> None:
    model = small_model()
    model.register_forward_hook(lambda module, _, out: out.logits.max().item() and None)
    with refuses(PlanError):
        _traced(make_trainer(model))
