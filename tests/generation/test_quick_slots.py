"""Rows in banks of keys and values in bf16."""

from collections.abc import Iterator

import pytest
import torch
from quick_models import llama, needs_bf16
from torch import Tensor
from transformers import PreTrainedModel

from brimful.generation.copied_weights import copied_weights
from brimful.generation.forward import Forward
from brimful.generation.quick_slots import BANK_ROWS, QuickSlots

pytestmark = needs_bf16
SHORT, LONG = tuple(range(3, 8)), tuple(range(20, 90))


@pytest.fixture
def model() -> Iterator[PreTrainedModel]:
    made = llama()
    with torch.inference_mode(), copied_weights(made, "bf16", with_blocks=True) as is_quick:
        assert is_quick
        yield made


def started(model: PreTrainedModel, windows: list[tuple[int, ...]]) -> QuickSlots:
    """Rows of these texts."""
    slots = QuickSlots(Forward(model))
    slots.enter(slots.prefill(windows), range(len(windows)))
    return slots


def after(model: PreTrainedModel, window: tuple[int, ...], tokens: list[int]) -> Tensor:
    """Logits of a text alone after each of these tokens."""
    slots = started(model, [window])
    return torch.cat([slots.step([token]) for token in tokens])


def test_prompts_read_together_give_the_bits_of_each_alone(model: PreTrainedModel) -> None:
    slots = QuickSlots(Forward(model))
    both = slots.prefill([LONG, SHORT]).logits_PV
    for logits_V, window in zip(both, (LONG, SHORT), strict=True):
        assert torch.equal(logits_V, slots.prefill([window]).logits_PV[0])


def test_a_token_behind_a_prompt_gives_about_what_the_longer_prompt_gives(
    model: PreTrainedModel,
) -> None:
    for window in (SHORT, LONG):
        stepped = started(model, [window]).step([9])[0].float()
        read = QuickSlots(Forward(model)).prefill([(*window, 9)]).logits_PV[0].float()
        assert (stepped - read).abs().mean() < 0.02 * read.abs().mean()


def test_rows_of_a_prompt_start_from_its_keys(model: PreTrainedModel) -> None:
    slots = QuickSlots(Forward(model))
    slots.enter(slots.prefill([LONG, SHORT]), [0, 0, 1])
    logits = slots.step([5, 6, 7])
    for row, (window, token) in enumerate(((LONG, 5), (LONG, 6), (SHORT, 7))):
        assert torch.equal(logits[row], after(model, window, [token])[0])


def test_rows_that_leave_enter_and_change_banks_do_not_change_others(
    model: PreTrainedModel,
) -> None:
    windows = [LONG] * (BANK_ROWS - 2) + [(number, 2, *SHORT) for number in range(1, 13)]
    slots = started(model, windows)
    slots.step([9] * len(windows))
    order = slots.leave([*range(20), BANK_ROWS])
    kept = [windows[row] for row in order]
    assert sorted(order) == [row for row in range(len(windows)) if row >= 20 and row != BANK_ROWS]
    slots.step([8] * len(order))
    slots.enter(slots.prefill([SHORT]), [0] * 20)
    logits = slots.step([7] * (len(order) + 20))
    for row in range(len(order)):
        assert torch.equal(logits[row], after(model, kept[row], [9, 8, 7])[-1])
    assert torch.equal(logits[-1], after(model, SHORT, [7])[-1])


def test_banks_are_as_long_as_their_longest_row_needs(model: PreTrainedModel) -> None:
    slots = started(model, [LONG, SHORT])
    assert [store.shape[4] for store in slots._banks.stores] == [96]
    for _ in range(26):
        slots.step([9, 9])
    assert [store.shape[4] for store in slots._banks.stores] == [96]
    slots.step([9, 9])
    assert [store.shape[4] for store in slots._banks.stores] == [128]
    slots.leave([0, 1])
    assert not slots._banks.stores


def test_banks_have_as_many_rows_as_are_awaited(model: PreTrainedModel) -> None:
    slots = QuickSlots(Forward(model))
    slots.await_rows(BANK_ROWS + 3)
    read = slots.prefill([SHORT])
    slots.enter(read, [0] * (BANK_ROWS + 1))
    assert [store.shape[2] for store in slots._banks.stores] == [BANK_ROWS, 3]
    slots.enter(read, [0] * 2)
    slots.enter(slots.prefill([LONG]), [0])  # more than were awaited
    assert [store.shape[2] for store in slots._banks.stores] == [BANK_ROWS, 4]
    logits = slots.step([9] * (BANK_ROWS + 4))
    assert torch.equal(logits[-1], after(model, LONG, [9])[0])
    assert torch.equal(logits[-2], after(model, SHORT, [9])[0])
