"""What other trainers do, seen in small traces as on CUDA."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Llama4TextConfig, LlamaConfig

from brimful.base.types import JsonDict
from brimful.hardware.rates import CLASSES
from brimful.integrations.other_tools.stand_ins import (
    ForeignStep,
    LossChain,
    PeftAdapter,
    TrainerQuirks,
    losses,
)
from brimful.integrations.other_tools.stand_ins.layers import SinglyQuantized
from brimful.planning.memory import terms_at
from brimful.planning.step import Lora, canonical
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import Work
from brimful.rehearsal.models import config_of
from brimful.rehearsal.store import StoredTraces, canonical_step
from brimful.rehearsal.training import record_training

BATCH, LENGTH, WIDTH, VOCABULARY = 4, 64, 64, 512
TOKENS = BATCH * LENGTH
BF16_LOGITS_BYTES = 2 * TOKENS * VOCABULARY
GROUP, INNER = 32, 160
BLOCK_WEIGHTS = 2 * (2 * WIDTH * WIDTH + 2 * WIDTH * GROUP + 3 * WIDTH * INNER)
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    intermediate_size=INNER,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
SHIFTED = LossChain(shifted_copy=True)
IN_PLACE = LossChain(shifted_copy=True, cross_entropy="in_place")
FUSED_LINEAR = LossChain("none", cross_entropy="fused_linear")


@functools.cache
def _trace(spec: ForeignStep) -> Trace:
    return record_training(spec, config_of(spec), BATCH)


def _peak_bytes(spec: ForeignStep, phase: str) -> int:
    trace = _trace(spec)
    marks = [*trace.marks.items(), ("", len(trace.events_E))]
    start, end = next(
        (first, marks[index + 1][1])
        for index, (name, first) in enumerate(marks[:-1])
        if name == phase
    )
    return int(trace.live_E()[start:end].max())


def _loss_peak_bytes(spec: ForeignStep) -> int:
    """Most bytes of loss and logits alive at once."""
    trace = _trace(spec)
    numbers = abs(trace.events_E) - 1
    is_loss = trace.kinds_S[numbers] == KINDS.index("loss and logits")
    changes = np.sign(trace.events_E) * trace.sizes_S[numbers] * is_loss
    return int(changes.cumsum().max())


def other(**changes: Any) -> ForeignStep:
    """A pure bf16 step of another trainer on CUDA."""
    values: JsonDict = {
        "sequence_length": LENGTH,
        "weights": "bf16",
        "chain": LossChain(),
        "accumulates": False,
    }
    return ForeignStep(config_json=canonical(CONFIG.to_dict()), **(values | changes))


@pytest.mark.parametrize(
    ("chain", "weights", "copies"),
    [
        (SHIFTED, "fp32", 3),
        (IN_PLACE, "fp32", 2),
        (SHIFTED, "bf16", 3.5),
        (IN_PLACE, "bf16", 2.5),
    ],
)
def test_a_loss_over_whole_logits_holds_copies_of_them(
    chain: LossChain, weights: str, copies: float
) -> None:
    """In fp32: logits, their shifted copy, and the gradient; bf16 logits stand beside as half a
    copy.
    """
    peak_bytes = _loss_peak_bytes(other(weights=weights, chain=chain, accumulates=True))

    assert peak_bytes / (TOKENS * VOCABULARY * 4) == pytest.approx(copies, abs=0.1)


def test_logits_of_a_model_whose_body_has_another_name_are_made_once() -> None:
    """Llama 4's text part names a body that it does not have."""
    config = Llama4TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        intermediate_size_mlp=INNER,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=2,
    )
    step = replace(other(chain=SHIFTED), config_json=canonical(config.to_dict()))

    assert _loss_peak_bytes(step) == _loss_peak_bytes(other(chain=SHIFTED))


def test_a_fused_linear_loss_holds_less_than_the_logits() -> None:
    spec = other(weights="fp32", chain=FUSED_LINEAR, accumulates=True)

    assert _loss_peak_bytes(spec) < TOKENS * VOCABULARY * 4


def test_an_upcast_beside_the_logits_costs_them_once_more() -> None:
    beside, instead = (
        _peak_bytes(other(chain=LossChain(upcast)), "forward") for upcast in ("beside", "instead")
    )  # type: ignore[arg-type]

    assert beside - instead == BF16_LOGITS_BYTES


def test_logits_of_all_pieces_that_stand_cost_them_but_one() -> None:
    """torchtune's older loss gets bf16 logits of eight pieces; the newer one makes one at a time,
    from a copy of the rows.
    """
    standing, made = (
        _loss_peak_bytes(other(chain=LossChain("none", cross_entropy=kernel)))
        for kernel in ("chunked_outputs", "chunked")
    )  # type: ignore[arg-type]

    copied_bytes = 2 * TOKENS * WIDTH
    assert standing - made == pytest.approx(BF16_LOGITS_BYTES * 7 / 8 - copied_bytes, rel=0.05)


def test_norms_embeddings_and_head_in_fp32_cost_two_bytes_a_weight() -> None:
    """Two norms in each of two blocks and one behind them, embedding and head."""
    weights = (5 * WIDTH) + 2 * VOCABULARY * WIDTH
    plain, with_ends = (
        _trace(other(chain=LossChain(), autocast="bf16", fp32_ends=ends)) for ends in (False, True)
    )

    def held(trace: Trace) -> int:
        return int(trace.sizes_S[trace.kinds_S == KINDS.index("weights")].sum())

    assert held(with_ends) - held(plain) == 2 * weights


def test_a_kernel_in_place_saves_the_log_softmax() -> None:
    plain, in_place = (
        _peak_bytes(other(chain=LossChain(cross_entropy=kernel)), "forward")
        for kernel in ("torch", "in_place")
    )  # type: ignore[arg-type]

    assert plain - in_place == pytest.approx(2 * BF16_LOGITS_BYTES, rel=0.02)


def test_outputs_that_are_kept_stand_beside_the_next_forward_pass() -> None:
    plain, kept = (
        _peak_bytes(other(quirks=TrainerQuirks(keeps_outputs=keeps)), "forward 2")
        for keeps in (False, True)
    )

    assert kept - plain >= BF16_LOGITS_BYTES


def test_a_reference_passes_over_the_rows_while_outputs_are_held() -> None:
    """Without keeping anything for a backward pass; a model of its own also keeps its weights."""
    alone, read, own = (
        other(weights="fp32", chain=LossChain("instead", passes=passes, second_model=own))
        for passes, own in ((0, False), (1, False), (1, True))
    )
    more = _peak_bytes(read, "forward") - _peak_bytes(alone, "forward")
    assert more >= 2 * BF16_LOGITS_BYTES  # logits in fp32
    weight_bytes = 4 * _trace(own).parameters
    assert _peak_bytes(own, "forward") - _peak_bytes(read, "forward") == weight_bytes
    assert _peak_bytes(own, "backward") - _peak_bytes(alone, "backward") == weight_bytes


def test_a_fused_norm_keeps_no_fp32_copy_and_trains_no_weight() -> None:
    plain, fused = (
        _peak_bytes(other(quirks=TrainerQuirks(fused_rms_norm=fuses)), "forward")
        for fuses in (False, True)
    )

    assert plain - fused >= 5 * 4 * TOKENS * WIDTH


def test_dropout_on_cuda_keeps_a_byte_for_each_element() -> None:
    adapter = Lora(4, "down_proj", 0.0)
    without, dropped = (
        _peak_bytes(other(adapter=replace(adapter, dropout=share)), "forward")
        for share in (0.0, 0.1)
    )

    assert 0 < dropped - without <= 2 * TOKENS * 160


def test_older_recomputation_holds_a_block_s_output_again() -> None:
    newer, older = (
        _peak_bytes(
            other(
                recompute=True,
                chain=FUSED_LINEAR,
                quirks=TrainerQuirks(reentrant=nested),
            ),
            "backward",
        )
        for nested in (False, True)
    )

    assert older > newer


@pytest.mark.parametrize(("bits", "group"), [("gptq4", 32), ("gptq4", 0), ("nf4", 0)])
def test_packed_layers_take_about_half_a_byte_for_each_weight(bits: str, group: int) -> None:
    trace = _trace(other(adapter=Lora(4, "q_proj"), quantize=bits, gptq_group=group))
    weights = 2 * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * 160)
    parameters = {name: index for index, name in enumerate(trace.places)}
    packed = sum(
        int(trace.sizes_S[trace.places_S == index].sum())
        for name, index in parameters.items()
        if name.endswith("_proj.weight")
    )

    assert packed <= weights
    assert trace.parameters > weights


def test_gptq_layers_unpack_their_weights_inside_the_product() -> None:
    adapter = Lora(4, "q_proj")
    plain = _work(other(adapter=adapter, chain=None, accumulates=True))
    packed = _work(
        other(adapter=adapter, chain=None, accumulates=True, quantize="gptq4", gptq_group=32)
    )

    rows_W = packed.operators_W == packed.operators.index("gptq_matmul")
    times = 2 * BLOCK_WEIGHTS - WIDTH * (WIDTH + 2 * GROUP)  # no gradient of the first input
    assert packed.flop() == plain.flop()
    assert {CLASSES[index] for index in packed.classes_W[rows_W]} == {"matrix"}
    assert packed.only(rows_W).flop() == 2 * TOKENS * times
    assert packed.bytes_W[rows_W].sum() > 0.5 * times


def _work(spec: ForeignStep) -> Work:
    work = _trace(spec).work
    assert work is not None
    return work.part("micro-batch")


def test_adapters_of_another_kind_train_what_peft_says() -> None:
    trace = _trace(
        other(
            adapter=PeftAdapter("IA3", '{"target_modules": ["k_proj"], "feedforward_modules": []}')
        )
    )

    assert trace.trainable == 2 * 32


@pytest.mark.parametrize("kernel", ["cut", "chunked", "tiled"])
def test_a_loss_in_pieces_holds_less_than_one_over_whole_logits(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "TILE_ROWS", TOKENS // 8)
    monkeypatch.setattr(losses, "TILE_WORDS", VOCABULARY // 2)
    whole = _loss_peak_bytes(other(weights="bf16", chain=LossChain(), accumulates=True))
    pieces = _loss_peak_bytes(
        other(
            weights="bf16",
            chain=LossChain("none", cross_entropy=kernel),  # type: ignore[arg-type]
            accumulates=True,
        )
    )

    assert pieces < whole


def test_pieces_keep_the_log_softmax_of_all_and_cut_ones_nothing() -> None:
    """torchtune's pieces: 4 bytes for each logit stay for the backward pass."""
    chunked, cut = (
        _loss_peak_bytes(other(chain=LossChain("none", cross_entropy=kernel)))  # type: ignore[arg-type]
        for kernel in ("chunked", "cut")
    )

    assert chunked >= TOKENS * VOCABULARY * 4
    assert cut < BF16_LOGITS_BYTES


@pytest.mark.parametrize("kernel", ["cut", "chunked", "tiled"])
def test_losses_in_pieces_do_all_the_products(kernel: str) -> None:
    """Whole logits: three products with the head. Cut and tiled make the logits twice."""
    whole = _work(other(accumulates=True)).flop()
    pieces = _work(
        other(accumulates=True, chain=LossChain("none", cross_entropy=kernel))  # type: ignore[arg-type]
    ).flop()
    head = 2 * TOKENS * VOCABULARY * WIDTH

    assert pieces - whole == pytest.approx(0 if kernel == "chunked" else head, abs=0.1 * head)


def test_fewer_rows_than_a_tile_do_the_work_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows behind the first tile are counted from larger micro-batches; here there are none."""
    monkeypatch.setattr(losses, "TILE_ROWS", 7 * LENGTH // 2)
    spec = other(accumulates=True, chain=LossChain("none", cross_entropy="tiled"))

    found = StoredTraces(spec, None).work_at(3)

    assert (found.counts() >= 0).all()
    direct = record_training(canonical_step(spec), config_of(spec), 3).work
    assert direct is not None
    assert found.flop() == pytest.approx(direct.flop(), rel=1e-12)


def test_a_fused_gated_mlp_keeps_two_tensors_where_plain_ones_keep_four() -> None:
    plain, fused = (
        _peak_bytes(other(quirks=TrainerQuirks(fused_glu=fuses)), "forward")
        for fuses in (False, True)
    )

    assert plain - fused >= 2 * 2 * TOKENS * INNER


def test_a_fused_lora_mlp_keeps_less_than_fused_layers() -> None:
    adapter = Lora(4, "gate_proj,up_proj,down_proj")
    layers, whole = (
        _peak_bytes(
            other(adapter=adapter, quirks=TrainerQuirks(fused_lora=True, fused_lora_mlp=mlp)),
            "forward",
        )
        for mlp in (False, True)
    )

    assert layers - whole >= 2 * 2 * TOKENS * INNER
    assert _trace(
        other(adapter=adapter, quirks=TrainerQuirks(fused_lora=True, fused_lora_mlp=True))
    ).trainable == 2 * 3 * 4 * (WIDTH + INNER)


def test_fused_norms_train_where_they_are_said_to() -> None:
    frozen, trained = (
        _states_bytes(other(quirks=TrainerQuirks(fused_rms_norm=True, fused_norms_train=trains)))
        for trains in (False, True)
    )

    assert trained > frozen


def _states_bytes(spec: ForeignStep) -> int:
    trace = _trace(spec)
    return int(trace.sizes_S[trace.kinds_S == KINDS.index("optimizer states")].sum())


def test_single_quantisation_keeps_four_bytes_for_64_weights() -> None:
    with torch.device("meta"):
        layer = SinglyQuantized(nn.Linear(1024, 512), torch.bfloat16)

    assert layer.scales.nbytes == 4 * 1024 * 512 // 64
    assert sum(buffer.nbytes for buffer in layer.buffers()) < 4 * 1024 * 512 // 64 + 1024


def test_states_in_memory_that_the_driver_moves_take_nothing_here() -> None:
    wide = canonical({**CONFIG.to_dict(), "vocab_size": 4096})
    paged, plain = (
        _states_bytes(replace(other(optimizer=kind), config_json=wide))
        for kind in ("paged_32bit", "fused")
    )

    assert paged <= plain - 2 * 2 * 4096 * WIDTH


def _peak_terms(**changes: Any) -> dict[str, int]:
    trace = _trace(other(**changes))
    return terms_at(trace, int(trace.live_E().argmax()))


def test_layers_of_8_bits_keep_their_inputs_and_a_scale_per_output() -> None:
    """Half of the weights' bytes go. Beside the adapters nothing else would keep an input."""
    adapter = Lora(4, "v_proj")
    plain, eight = (_peak_terms(adapter=adapter, quantize=kind) for kind in ("none", "int8"))
    outputs = 2 * WIDTH + 2 * GROUP + 2 * INNER + WIDTH

    assert plain["weights"] - eight["weights"] == CONFIG.num_hidden_layers * (
        BLOCK_WEIGHTS // 2 - 4 * outputs
    )
    assert eight["activations"] > plain["activations"]


def test_copies_of_modules_are_trained_in_the_type_of_the_base() -> None:
    """The original stays, and its copy has a gradient and two states in 16 bits."""
    one, both = (_peak_terms(adapter=Lora(4, "v_proj", saved=each)) for each in ("", "lm_head"))
    head = 2 * VOCABULARY * WIDTH

    assert both["weights"] == one["weights"]
    assert both["adapters"] - one["adapters"] == head
    states = both["optimizer states"] - one["optimizer states"]
    assert states == pytest.approx(2 * head, abs=8)  # beside a count of updates
