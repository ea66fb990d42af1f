import pytest
from fixture_types import MakeStep

from brimful.planning.step import StepSpec
from brimful.planning.trace import KINDS
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training

TOKENS, VOCABULARY = 4 * 64, 512


def _loss_peak_bytes(spec: StepSpec) -> int:
    """Most bytes of loss and logits alive at once."""
    trace = record_training(spec, config_of(spec), 4)
    numbers = abs(trace.events_E) - 1
    changes = (
        ((trace.events_E > 0) * 2 - 1)
        * trace.sizes_S[numbers]
        * (trace.kinds_S[numbers] == KINDS.index("loss and logits"))
    )
    return int(changes.cumsum().max())


def test_the_model_s_own_loss_holds_three_copies_of_the_logits(
    step: MakeStep,
) -> None:
    """Logits, their log-softmax, and the gradient."""
    copies = _loss_peak_bytes(step(loss="model")) / (TOKENS * VOCABULARY * 4)

    assert copies == pytest.approx(3, abs=0.1)


def test_smaller_chunks_hold_fewer_logits(step: MakeStep) -> None:
    halves, quarters = (_loss_peak_bytes(step(loss_chunk=TOKENS // parts)) for parts in (2, 4))

    assert halves - quarters > TOKENS // 4 * VOCABULARY * 4


def test_classification_has_no_logits_to_speak_of(step: MakeStep) -> None:
    assert _loss_peak_bytes(step("bert")) < 4 * 64 * 64 * 4 * 2


def test_there_are_logits_of_hidden_words_only(step: MakeStep) -> None:
    few, many = (
        _loss_peak_bytes(step("modernbert", loss_chunk=TOKENS, options={"masked_share": share}))
        for share in (0.5, 0.9)
    )

    assert many - few > 0.39 * TOKENS * VOCABULARY * 4
