"""How a recipe runs on a device: the effective batch is a promise, choices follow from abilities, and the user's word stands."""

import dataclasses
import random
from collections.abc import Callable

import pytest

from brimful.base.errors import PlanError
from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device
from brimful.model.attention import NAME
from brimful.model.description import count_parameters
from brimful.planning.derive import BF16_PAYS_FROM, MEMORY_HIGH, MEMORY_LOW, USABLE_SHARE, Facts, derive, evened, split, total_steps_of
from brimful.planning.plan import Plan
from brimful.recipe import Recipe


def _choice(plan: Plan, name: str) -> object:
    (value,) = [choice.value for choice in plan.choices if choice.name == name]
    return value


def _reason(plan: Plan, name: str) -> str:
    (reason,) = [choice.reason for choice in plan.choices if choice.name == name]
    return reason


def _random_recipe(seed: int) -> Recipe:
    """Small and large models, short and long sequences, odd and even batches, some of the plan fixed."""
    draw = random.Random(seed)
    heads, length = draw.choice([1, 2, 8]), draw.choice([2, 33, 128, 1024, 4096])
    plan: dict[str, object] = {}
    if draw.random() < 0.3:
        plan["micro_batch"] = draw.randint(1, 600)
    if draw.random() < 0.3:
        plan["precision"] = draw.choice(["fp32", "bf16", "fp16"])
    if draw.random() < 0.3:
        plan["loss_chunk"] = draw.randint(1, 5000)
    batch = draw.randint(1, 600)
    return Recipe.model_validate(
        {
            "name": f"random-{seed}",
            "sequence_length": length,
            "batch": draw.choice([{"sequences": batch}, {"tokens": batch * length}]),
            "training": draw.choice([{"steps": 10}, {"epochs": 1.5}, {"tokens": 10**6}]),
            "model": {
                "architecture": draw.choice(["llama", "gpt2"]), "layers": draw.randint(1, 24), "heads": heads, "width": heads * 2 * draw.randint(1, 64),
                "tie_embeddings": draw.random() < 0.5,
            },
            "tokenizer": {"vocabulary": draw.choice([257, 4096, 50_257])},
            "data": {"path": "x.txt"},
            "optimizer": {"learning_rate": 1e-3},
            "plan": plan,
        }
    )  # fmt: skip


@pytest.mark.parametrize("block", range(4))
def test_the_effective_batch_is_the_recipes_on_every_device(devices: dict[str, Device], block: int) -> None:
    refused = 0
    for seed in range(50 * block, 50 * (block + 1)):
        recipe = _random_recipe(seed)
        for device in devices.values():
            try:
                plan = derive(recipe, device)
            except PlanError:
                refused += 1
                continue

            assert sum(plan.micro_batches) == plan.effective_batch == recipe.effective_batch, (seed, device.name)
            assert set(plan.micro_batches[:-1]) <= {plan.micro_batches[0]}, (seed, device.name)
            assert 0 < plan.micro_batches[-1] <= plan.micro_batches[0], (seed, device.name)
            assert plan.micro_batches[0] == _choice(plan, "micro_batch"), (seed, device.name)
            if recipe.plan.micro_batch != "auto":
                assert plan.micro_batches[0] == min(recipe.plan.micro_batch, recipe.effective_batch), (seed, device.name)
    assert refused < 50


@pytest.mark.parametrize(("effective", "micro", "parts"), [(8, 3, (3, 3, 2)), (9, 3, (3, 3, 3)), (1, 1, (1,)), (5, 5, (5,)), (7, 4, (4, 3))])
def test_a_batch_is_split_with_only_the_last_part_smaller(effective: int, micro: int, parts: tuple[int, ...]) -> None:
    assert split(effective, micro) == parts


@pytest.mark.parametrize(("effective", "largest", "size"), [(9, 8, 5), (16, 8, 8), (17, 8, 6), (10, 100, 10), (7, 1, 1)])
def test_passes_are_as_few_as_can_be_and_then_as_equal_as_can_be(effective: int, largest: int, size: int) -> None:
    assert evened(effective, largest) == size
    assert len(split(effective, size)) == -(-effective // largest)


# --- precision


@pytest.mark.parametrize(
    ("name", "precision", "because"),
    [
        ("Tesla T4", "fp16", "no native bf16"),
        ("NVIDIA A100-SXM4-80GB", "bf16", "native on this device"),
        ("NVIDIA H200", "bf16", "native on this device"),
    ],
)
def test_precision_follows_the_abilities_of_a_gpu(tiny: Callable[..., Recipe], name: str, precision: str, because: str) -> None:
    plan = derive(tiny("plan={}"), catalog.get(name))

    assert plan.precision == _choice(plan, "precision") == precision
    assert because in _reason(plan, "precision")


def test_a_gpu_without_16_bit_matrix_units_stays_at_fp32(tiny: Callable[..., Recipe]) -> None:
    old = dataclasses.replace(catalog.get("Tesla T4"), abilities=Abilities())

    assert derive(tiny("plan={}"), old).precision == "fp32"


@pytest.mark.parametrize(
    ("rates", "precision"),
    [
        ({"fp32": 1.0, "bf16": BF16_PAYS_FROM}, "bf16"),
        ({"fp32": 1.0, "bf16": BF16_PAYS_FROM - 0.01}, "fp32"),
        ({"fp32": 1.0, "bf16": 0.1}, "fp32"),
        ({"fp32": 1.0}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_a_cpu_uses_bf16_when_it_was_measured_to_pay(
    tiny: Callable[..., Recipe], cpu: Callable[..., Device], rates: dict[str, float], precision: str
) -> None:
    plan = derive(tiny("plan={}"), cpu(dense_flop_per_s=rates))

    assert plan.precision == precision
    if len(rates) == 2:
        assert f"{rates['bf16']:.1f}x as fast" in _reason(plan, "precision")


# --- the user's word


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("precision", "fp32", "precision"), ("precision", "bf16", "precision"), ("micro_batch", 3, None), ("attention", "eager", "attention"),
        ("recompute", True, "recompute"), ("compile", True, "compile"), ("compile", False, "compile"), ("loss_chunk", 7, "loss_chunk"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["Tesla T4", "NVIDIA H200", "cpu"])
def test_what_the_user_fixed_stands(
    tiny: Callable[..., Recipe], devices: dict[str, Device], device: str, key: str, value: str | int | bool, field: str | None
) -> None:
    plan = derive(tiny("plan={}", f"plan.{key}={str(value).lower()}"), devices[device])

    assert _choice(plan, key) == value
    assert _reason(plan, key) == "fixed by the user"
    assert (getattr(plan, field) if field else plan.micro_batches[0]) == value


def test_a_fixed_micro_batch_is_used_as_it_is_even_where_it_divides_badly(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    assert derive(tiny("batch.sequences=9", "plan={micro_batch: 4}"), cpu()).micro_batches == (4, 4, 1)


def test_a_fixed_micro_batch_above_the_effective_batch_is_the_whole_batch(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    assert derive(tiny("plan={micro_batch: 100}"), cpu()).micro_batches == (8,)


def test_threads_are_the_cpus_or_the_users_and_no_matter_of_a_gpu(tiny: Callable[..., Recipe], devices: dict[str, Device]) -> None:
    assert derive(tiny("plan={}"), devices["cpu"]).threads == 2
    assert derive(tiny("plan={threads: 1}"), devices["cpu"]).threads == 1
    assert derive(tiny("plan={}"), devices["Tesla T4"]).threads is None


# --- memory

LARGE = ("plan={}", "model={layers: 24, heads: 16, width: 1024}", "sequence_length=1024", "batch.sequences=64")


def test_memory_terms_add_up_to_the_predicted_peak(devices: dict[str, Device]) -> None:
    for seed in range(40):
        for device in (devices["Tesla T4"], devices["NVIDIA H200"], dataclasses.replace(devices["cpu"], free_memory_bytes=100 * GIB)):
            plan = derive(_random_recipe(seed), device, Facts(process_bytes=300 * MIB))
            peak = plan.predicted["peak_memory_bytes"]

            assert sum(plan.memory_terms.values()) == peak.value
            assert (peak.low, peak.high) == (MEMORY_LOW * peak.value, MEMORY_HIGH * peak.value)
            assert all(term >= 0 for term in plan.memory_terms.values())


def test_weights_gradients_and_states_follow_from_the_parameters(tiny: Callable[..., Recipe], devices: dict[str, Device]) -> None:
    recipe = tiny("plan={}")
    parameters = count_parameters(recipe.model, 290, recipe.context).total

    full, half = (derive(tiny("plan={}", f"plan.precision={name}"), devices["cpu"], Facts(vocabulary=290)) for name in ("fp32", "bf16"))

    assert full.parameters == half.parameters == parameters
    assert (full.memory_terms["weights"], half.memory_terms["weights"]) == (4 * parameters, 6 * parameters)
    for plan in (full, half):
        assert plan.memory_terms["gradients"] == 4 * parameters
        assert plan.memory_terms["optimizer states"] == 8 * parameters


def test_the_micro_batch_is_the_largest_whose_estimate_fits(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    device = dataclasses.replace(catalog.get("Tesla T4"), memory_bytes=12 * GIB)
    plan = derive(tiny(*LARGE), device)
    size = plan.micro_batches[0]

    assert 1 < size < 64
    assert plan.predicted["peak_memory_bytes"].value <= USABLE_SHARE * device.memory_bytes
    fits = max(n for n in range(1, 65) if _estimate(tiny, device, n) <= USABLE_SHARE * device.memory_bytes)
    assert size == evened(64, fits)
    assert f"the estimate of {fits} sequences fits" in _reason(plan, "micro_batch")


def _estimate(tiny: Callable[..., Recipe], device: Device, micro_batch: int) -> float:
    return derive(tiny(*LARGE, f"plan.micro_batch={micro_batch}"), device).predicted["peak_memory_bytes"].value


def test_less_memory_never_gives_a_larger_micro_batch(tiny: Callable[..., Recipe]) -> None:
    card = catalog.get("Tesla T4")
    sizes = [derive(tiny(*LARGE), dataclasses.replace(card, memory_bytes=gib * GIB)).micro_batches[0] for gib in (9, 12, 16, 24, 48, 96)]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_one_sequence_above_the_estimate_but_within_its_doubt_is_tried_and_said(tiny: Callable[..., Recipe]) -> None:
    card = catalog.get("Tesla T4")
    doubtful = round(0.85 * _estimate(tiny, card, 1) / USABLE_SHARE)

    plan = derive(tiny(*LARGE), dataclasses.replace(card, memory_bytes=doubtful))

    assert plan.micro_batches == (1,) * 64
    assert "one sequence: its estimate" in _reason(plan, "micro_batch")


def test_what_cannot_fit_is_refused_with_both_numbers_and_a_remedy(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    with pytest.raises(
        PlanError, match=r"tiny needs about [\d.]+ GiB for one sequence of 1024 tokens, but a CPU has 921\.6 MiB to use\. Shorten.*model\.width"
    ):
        derive(tiny(*LARGE), cpu(free_memory_bytes=GIB))


def test_free_memory_counts_where_it_was_measured_and_the_process_is_in_it(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    recipe = tiny(*LARGE)
    needed = sum(derive(tiny(*LARGE, "plan.micro_batch=1"), cpu()).memory_terms.values())
    tight = cpu(memory_bytes=100 * needed, free_memory_bytes=round(0.72 * needed / USABLE_SHARE))

    assert derive(recipe, tight, Facts(process_bytes=MIB)).micro_batches[0] == 1
    with pytest.raises(PlanError):
        derive(recipe, dataclasses.replace(tight, free_memory_bytes=round(0.68 * needed / USABLE_SHARE)))


# --- length and time


@pytest.mark.parametrize(
    ("overrides", "train_sequences", "steps"),
    [
        (["training.steps=7"], None, 7),
        (["training.tokens=25600"], None, 100),  # 8 sequences of 32 tokens a step
        (["training.tokens=1"], None, 1),
        (["training.epochs=2"], 100, 25),
        (["training.epochs=0.5"], 100, 6),
        (["training.epochs=0.001"], 100, 1),
        (["training.epochs=2"], None, None),
    ],
)
def test_the_length_of_training_is_counted_in_optimizer_steps(
    tiny: Callable[..., Recipe], cpu: Callable[..., Device], overrides: list[str], train_sequences: int | None, steps: int | None
) -> None:
    recipe = tiny("plan={}", *overrides)

    assert total_steps_of(recipe, train_sequences) == steps
    plan = derive(recipe, cpu(), Facts(train_sequences=train_sequences))
    assert plan.total_steps == steps
    assert ("training_time_s" in plan.predicted) == (steps is not None)


def test_training_time_is_step_time_times_steps(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    predicted = derive(tiny("plan={}"), cpu()).predicted

    for field in ("value", "low", "high"):
        assert getattr(predicted["training_time_s"], field) == pytest.approx(12 * getattr(predicted["step_time_s"], field))


def test_step_time_is_not_guessed_where_no_rate_is_known(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    plan = derive(tiny("plan={}"), cpu(dense_flop_per_s={}))

    assert set(plan.predicted) == {"peak_memory_bytes"}
    assert _choice(plan, "compile") is False


def test_a_faster_device_is_predicted_to_be_faster(tiny: Callable[..., Recipe], devices: dict[str, Device]) -> None:
    times = [derive(tiny(*LARGE), devices[name]).predicted["step_time_s"].value for name in ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")]

    assert times == sorted(times, reverse=True)


def test_compiling_is_chosen_when_it_saves_more_than_it_costs(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    short, long = (derive(tiny("plan={}", f"training.steps={steps}"), cpu()) for steps in (10, 10_000_000))

    assert (short.compile, long.compile) == (False, True)
    assert "compiling costs about" in _reason(short, "compile")
    assert "would save about" in _reason(long, "compile")


def test_compiling_is_not_chosen_where_nothing_can_compile(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    assert not derive(tiny("plan={}", "training.steps=10000000"), cpu(abilities=Abilities())).compile


def test_the_loss_takes_tokens_in_pieces_whose_logits_stay_small(tiny: Callable[..., Recipe], devices: dict[str, Device]) -> None:
    for name, limit in (("cpu", 8 * MIB), ("Tesla T4", 256 * MIB)):
        for vocabulary in (300, 5000, 50_257, 250_000):
            chunk = derive(tiny("plan={}"), devices[name], Facts(vocabulary=vocabulary)).loss_chunk

            assert 64 <= chunk <= 16_384
            assert chunk == 64 or 4 * vocabulary * chunk <= limit


@pytest.mark.parametrize(
    ("device", "length", "chosen"), [("cpu", 64, NAME), ("cpu", 256, NAME), ("cpu", 1024, NAME), ("cpu", 2048, "sdpa"), ("Tesla T4", 256, "sdpa")]
)
def test_attention_in_blocks_is_chosen_on_cpus_where_it_was_measured_to_win(
    tiny: Callable[..., Recipe], devices: dict[str, Device], device: str, length: int, chosen: str
) -> None:
    assert derive(tiny("plan={}", f"sequence_length={length}"), devices[device]).attention == chosen


def test_on_a_cpu_in_fp32_one_block_alone_does_not_beat_the_fused_kernel(tiny: Callable[..., Recipe], devices: dict[str, Device]) -> None:
    chosen = [derive(tiny("plan={precision: fp32}", f"sequence_length={length}"), devices["cpu"]).attention for length in (64, 65)]

    assert chosen == ["sdpa", NAME]


def test_bf16_instructions_decide_whatever_a_busy_machine_measures(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    busy = cpu(abilities=Abilities(bf16=True), dense_flop_per_s={"fp32": 1e11, "bf16": 1e10})

    assert derive(tiny("plan={}"), busy).precision == "bf16"
