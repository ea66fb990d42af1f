import torch
from fixture_types import MakeStep
from torch.profiler import ProfilerActivity, profile

from brimful.planning.step import Lora
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from measured_steps import measure_steps, read_profile


def test_what_is_measured_starts_with_the_weights_and_ends_with_gradients_and_states_beside_them(
    step: MakeStep,
) -> None:
    spec = step("llama")
    model = real_model(spec, config_of(spec))
    weights_bytes = sum(parameter.nbytes for parameter in model.parameters())

    measured = measure_steps(model, spec, 2)

    assert 0 <= measured.start_bytes - weights_bytes < 1024  # buffers of the rotary positions
    assert 0 <= measured.live_E()[-1] - 4 * weights_bytes < 2048
    assert max(measured.peaks(), key=lambda phase: measured.peaks()[phase]) in {
        "forward 3",
        "backward 3",
    }


def test_what_an_earlier_profile_left_is_not_counted_as_freed() -> None:
    def profiled() -> profile:
        return profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    with profiled():
        left = torch.zeros(1000)
    with profiled() as profiler:
        del left
        kept = torch.zeros(500)
        gone = torch.zeros(250)
        del gone
    measured = read_profile(profiler, 100)

    assert measured.live_E().tolist() == [2100, 3100, 2100]
    assert kept.nbytes == 2000


def test_what_is_alive_is_told_by_operator(step: MakeStep) -> None:
    spec = step("llama", loss="model")
    measured = measure_steps(real_model(spec, config_of(spec)), spec, 2)

    alive = measured.alive_at(int(measured.live_E().argmax()))

    assert (
        sum(num_bytes for num_bytes, _ in alive) == measured.live_E().max() - measured.start_bytes
    )
    assert any("AdamW.step" in operators for _, operators in alive)


def test_a_real_model_stays_finite_over_its_steps(step: MakeStep) -> None:
    spec = step("qwen2", adapter=Lora(4), quantize="nf4", weights="bf16")
    model = real_model(spec, config_of(spec))

    measure_steps(model, spec, 2)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained
    assert all(bool(torch.isfinite(parameter).all()) for parameter in trained)


def test_real_4_bit_layers_are_those_of_bitsandbytes(step: MakeStep) -> None:
    spec = step("llama", adapter=Lora(4), quantize="nf4", weights="bf16")

    modules = [type(module) for module in real_model(spec, config_of(spec)).modules()]

    assert sum(kind.__module__.startswith("bitsandbytes.") for kind in modules) == 2 * 7
    assert sum(kind.__module__ == "peft.tuners.lora.bnb" for kind in modules) == 2 * 7
