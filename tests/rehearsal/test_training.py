import gc
from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from fixture_types import MakeStep
from torch import Tensor
from transformers import masking_utils

from brimful.base.types import JsonDict
from brimful.planning.memory import phase_at
from brimful.planning.step import Lora, Recompute
from brimful.planning.trace import KINDS, Trace, in_one_pass
from brimful.planning.work import PHASES
from brimful.rehearsal.models import config_of
from brimful.rehearsal.optimizers import optimizer_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.training import Watcher, fake_world, prepare, record_training, run_steps


class _Phases(Watcher):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, phase: str) -> None:
        self.seen.append(phase)

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        self.seen.append(" and ".join(str(tuple(tensor.shape)) for tensor in tensors))

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen.append(f"{len(optimizer.state)} states")


def test_the_steps_are_two_updates_the_second_with_two_micro_batches(
    step: MakeStep,
) -> None:
    spec, phases = step("llama"), _Phases()
    model = real_model(spec, config_of(spec))
    prepare(spec, model)
    parameters = list(model.parameters())

    run_steps(model, optimizer_of(spec, parameters), spec, 2, phases)

    micro_batch = ["inputs", "(2, 64) and (2, 64)", "forward", "backward"]
    update = ["optimizer", f"{len(parameters)} states"]
    assert phases.seen == [
        *micro_batch,
        *update,
        *micro_batch,
        *micro_batch,
        *update,
        "between steps",
    ]


@pytest.mark.parametrize("adapter", [None, Lora(4)])
def test_a_step_without_its_second_micro_batch_is_the_step_that_accumulates_nothing(
    step: MakeStep, adapter: Lora | None
) -> None:
    """But for the order of small tensors: all phases have the same peaks, to 1 KiB."""
    two, one = (
        record_training(spec, config_of(spec), 2)
        for spec in (
            step("llama", adapter=adapter, accumulates=accumulates) for accumulates in (True, False)
        )
    )

    cut = in_one_pass(two)

    assert cut.marks.keys() == one.marks.keys()
    assert _peaks(cut) == pytest.approx(_peaks(one), abs=1024)
    assert _peaks(two)["backward"] > _peaks(one)["backward"] + 1024


def _peaks(trace: Trace) -> dict[str, int]:
    """Return the most that is alive in each phase of all steps."""
    live_E, peaks = trace.live_E(), dict[str, int]()
    for event, num_bytes in enumerate(live_E.tolist()):
        phase = phase_at(trace, event)
        peaks[phase] = max(peaks.get(phase, 0), num_bytes)
    return peaks


def test_two_recordings_of_a_step_are_equal(step: MakeStep) -> None:
    spec = step("qwen2", adapter=Lora(4), recompute=True)

    first, second = (record_training(spec, config_of(spec), 2) for _ in range(2))

    assert first.events_E.tolist() == second.events_E.tolist()
    assert first.sizes_S.tolist() == second.sizes_S.tolist()


def test_a_recording_leaves_the_process_as_it_was(step: MakeStep) -> None:
    spec, find, state = (
        step("llama", cuda=True),
        masking_utils.find_packed_sequence_indices,
        torch.get_rng_state(),
    )

    record_training(spec, config_of(spec), 2)

    assert gc.isenabled()
    assert masking_utils.find_packed_sequence_indices is find
    assert torch.equal(torch.get_rng_state(), state)
    assert type(torch.zeros(1)) is torch.Tensor


def test_the_garbage_collector_waits_and_stays_off_where_it_was_off(
    step: MakeStep,
) -> None:
    gc.disable()
    try:
        with fake_world(step()):
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_step_without_packing_or_padding_makes_no_mask_and_takes_the_flash_kernel(
    step: MakeStep, family: str
) -> None:
    spec = step(family, cuda=True, weights="bf16", sequence_length=80)

    trace = record_training(spec, config_of(spec), 2)

    row_sums_bytes = 2 * 4 * 80 * 4  # the memory-efficient kernel rounds 80 rows up to 96
    saved = (trace.sizes_S == row_sums_bytes) & (trace.kinds_S == KINDS.index("activations"))
    assert not (trace.sizes_S == row_sums_bytes // 80 * 96).any()
    assert int(saved.sum()) >= 2 * 3  # log-sum-exp of two blocks in three forward passes


@pytest.mark.parametrize("cuda", [False, True])
def test_recomputation_keeps_less_and_computes_more(step: MakeStep, *, cuda: bool) -> None:
    specs = [
        step("llama", blocks=4, cuda=cuda, recompute=recompute, weights="bf16")
        for recompute in (False, True)
    ]

    plain, recomputed = (record_training(spec, config_of(spec), 4) for spec in specs)

    assert recomputed.live_E().max() < plain.live_E().max()
    assert len(recomputed.events_E) > len(plain.events_E)
    assert recomputed.live_E()[-1] == plain.live_E()[-1]


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"adapter": Lora(4), "quantize": "nf4"}], ids=["full", "QLoRA"]
)
@pytest.mark.long_but("full-True")
def test_selective_recomputation_runs_no_expensive_operator_again(
    step: MakeStep, changes: JsonDict, *, cuda: bool
) -> None:
    def record(recompute: Recompute) -> Trace:
        spec = step("llama", blocks=2, cuda=cuda, recompute=recompute, weights="bf16", **changes)
        return record_training(spec, config_of(spec), 4)

    def again(trace: Trace) -> dict[str, int]:
        work = trace.work
        assert work is not None
        rows = work.phases_W == PHASES.index("recomputation")
        flop = Counter[str]()
        for operator, count in zip(work.operators_W[rows], work.flop_W[rows], strict=True):
            flop[work.operators[operator]] += int(count)
        return flop

    plain, whole, selective = (record(how) for how in (False, True, "selective"))

    assert plain.live_E().max() > selective.live_E().max() > whole.live_E().max()
    found = again(selective)
    assert "silu" in found
    assert not any("attention" in name or "dequant" in name for name in found)
    # An adapter's products are computed again.
    limit = 0.2 * sum(again(whole).values()) if changes else 0
    assert sum(found.values()) <= limit
    assert sum(again(plain).values()) == 0


def test_nothing_but_weights_gradients_and_states_is_left_after_a_step(
    step: MakeStep,
) -> None:
    trace = record_training(step("llama"), config_of(step("llama")), 2)

    left = trace.alive_at(len(trace.events_E) - 1)
    counters = trace.sizes_S[left][trace.kinds_S[left] == KINDS.index("temporaries")]

    assert {KINDS[kind] for kind in trace.kinds_S[left]} <= {
        "weights",
        "gradients",
        "optimizer states",
        "temporaries",
    }
    assert counters.sum() < 64
