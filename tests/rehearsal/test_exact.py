"""What is rehearsed is what happens: live bytes of real steps under torch's profiler beside the
trace's.
"""

import pytest
from fixture_types import MakeStep

from brimful.planning.step import Lora
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.training import record_training
from measured_steps import measure_steps

GENERATOR_STATE_BYTES = 5056
"""torch.utils.checkpoint keeps the state of the CPU's random generator for every block, outside of
operators; while a block computes again, one more.
"""
FED_BACK = {"feedback": "block"}
SCALAR_BYTES = 8
"""A Python number that a product with a tensor keeps for its backward pass, on a CPU."""


@pytest.mark.parametrize(
    ("family", "changes", "generator_states", "scalars"),
    [
        ("llama", {"autocast": "bf16"}, 0, 0),
        (
            "llama",
            {
                "adapter": Lora(4),
                "quantize": "nf4",
                "weights": "bf16",
                "loss": "model",
                "recompute": True,
            },
            2,
            7,
        ),
        ("llama", {"adapter": Lora(4, dora=True), "quantize": "nf4", "weights": "bf16"}, 0, 14),
        (
            "llama",
            {"adapter": Lora(4, quick=True), "weights": "bf16", "autocast": "bf16"},
            0,
            0,
        ),
        (
            "llama",
            {"adapter": Lora(4, quick=True, tokens=3), "weights": "bf16", "autocast": "bf16"},
            0,
            0,
        ),
        (
            "qwen3_moe",
            {
                "adapter": Lora(4, "q_proj,v_proj"),
                "quantize": "nf4",
                "packs_experts": True,
                "weights": "bf16",
            },
            0,
            7,
        ),
        ("gpt2", {"loss": "model", "optimizer": "foreach", "accumulates": False}, 0, 6),
        ("bert", {"recompute": True}, 2, 0),
        ("llama", {"autocast": "bf16", "recompute": "selective"}, 2, 0),
        (
            "llama",
            {"adapter": Lora(4), "quantize": "nf4", "weights": "bf16", "recompute": "selective"},
            3,
            7,
        ),
        ("bert", {"attention": "brimful_texts", "recompute": "selective"}, 2, 0),
        ("bert", {"attention": "brimful_texts", "autocast": "bf16"}, 0, 0),
        ("modernbert", {"padded": True, "loss_chunk": 50}, 0, 0),
        (
            "llama",
            {"options": FED_BACK, "autocast": "bf16", "recompute": True, "loss_chunk": 256},
            2,
            0,
        ),
        ("okadfa", {"options": {"feedback": "sublayer"}}, 0, 0),
        ("okadfa", {"autocast": "bf16"}, 0, 0),
        ("gpt2", {"options": {"feedback": "none"}}, 0, 0),
        ("llama", {"autocast": "bf16", "weights": "bf16", "optimizer": "rounded"}, 0, 0),
        ("llama", {"autocast": "bf16", "weights": "bf16", "optimizer": "rounded_8bit"}, 0, 0),
    ],
    ids=[
        "full, bf16 autocast, chunked loss",
        "QLoRA, recomputed",
        "QLoRA with DoRA",
        "LoRA by one function, bf16 autocast",
        "LoRA and three tokens, bf16 autocast",
        "QLoRA on packed experts",
        "GPT-2, foreach",
        "BERT classification, recomputed",
        "bf16 autocast, recomputed selectively",
        "QLoRA, recomputed selectively",
        "packed BERT classification, recomputed selectively",
        "packed BERT classification, bf16 autocast",
        "hidden words, padded",
        "error fed back, bf16 autocast, recomputed",
        "kernel attention, error fed back",
        "kernel attention, bf16 autocast",
        "head alone",
        "bf16 weights",
        "bf16 weights, 8-bit states",
    ],
)
@pytest.mark.long_but(
    "full, bf16 autocast, chunked loss",
    "QLoRA, recomputed",
    "kernel attention, error fed back",
    "packed BERT classification, bf16 autocast",
)
def test_the_peak_of_a_real_step_is_the_traces_to_the_byte(
    step: MakeStep,
    family: str,
    changes: dict[str, object],
    generator_states: int,
    scalars: int,
) -> None:
    spec = step(family, **changes)

    predicted_bytes = int(record_training(spec, config_of(spec), 4).live_E().max())
    measured_bytes = int(measure_steps(real_model(spec, config_of(spec)), spec, 4).live_E().max())

    assert predicted_bytes == pytest.approx(
        measured_bytes - generator_states * GENERATOR_STATE_BYTES,
        abs=scalars * 4 * SCALAR_BYTES + 64,
    )


def test_every_phase_peaks_as_high_as_it_does(step: MakeStep) -> None:
    spec = step("qwen2", autocast="bf16")

    trace = record_training(spec, config_of(spec), 4)
    measured = measure_steps(real_model(spec, config_of(spec)), spec, 4).peaks()

    starts = [*trace.marks.values(), len(trace.events_E)]
    tops = {
        name: int(trace.live_E()[first:end].max())
        for name, first, end in zip(trace.marks, starts, starts[1:], strict=False)
        if first < end
    }
    assert len(measured) >= 8
    del measured[""]  # before the first phase
    for name, top_bytes in measured.items():
        assert tops[name] == pytest.approx(top_bytes, abs=64), name


def test_a_step_leaves_nothing_alive_that_the_trace_does_not_know(
    step: MakeStep,
) -> None:
    spec = step("llama")

    trace = record_training(spec, config_of(spec), 2)
    measured = measure_steps(real_model(spec, config_of(spec)), spec, 2)

    assert trace.live_E()[-1] == measured.live_E()[-1]
