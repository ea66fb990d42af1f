"""Texts that a model writes beside a plan: how many at once, in how much memory, how long."""

from dataclasses import replace
from typing import Any

import pytest

from brimful.planning.plan import Plan, Prediction
from brimful.planning.writing import LEAST_ROOM, Texts, TextWriter, task_examples, verdicts_time
from brimful.recipe import Recipe, load

GIB = 2**30
CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "vocab_size": 49152,
}
PARAMETERS = 134_515_008
PLAN = Plan(
    recipe="rounds",
    device={"name": "a device", "kind": "cpu", "memory_bytes": 64 * GIB},
    choices=(),
    micro_batches=(16,),
    precision="fp32",
    attention="sdpa",
    recompute=False,
    compile=False,
    loss_chunk=16,
    threads=1,
    parameters=PARAMETERS,
    sequence_length=192,
    total_steps=42,
    predicted={
        "peak_memory_bytes": Prediction(2e9, 1.5e9, 3e9, "a trace"),
        "step_time_s": Prediction(20.0, 10.0, 40.0, "rates"),
        "total_time_s": Prediction(900.0, 450.0, 1800.0, "42 steps"),
    },
    memory_terms={"weights": 538_060_032},
)
ON_GPU = replace(
    PLAN, device={"name": "a GPU", "kind": "cuda", "memory_bytes": 24 * GIB}, precision="bf16"
)
SAMPLED = Texts("400 questions", 1600, 96)
POSITION_BYTES = 2 * 30 * 3 * 64
LOGITS_BYTES = 49152 * 13


@pytest.fixture
def recipe() -> Recipe:
    return load("unit-rft-smollm2")


def _writer(
    recipe: Recipe, plan: Plan = PLAN, usable: int = 64 * GIB, **changed: Any
) -> TextWriter:
    config = CONFIG | changed.pop("config", {})
    return TextWriter(
        recipe, plan, config, changed.pop("parameters", PARAMETERS), usable, **changed
    )


def _seconds(writer: TextWriter, times: int = 1, texts: Texts = SAMPLED) -> float:
    time = writer.write(times, [texts]).time_s
    assert time is not None
    assert time.low < time.value < time.high
    return time.value


def test_time_is_that_of_all_texts(recipe: Recipe) -> None:
    writer, answers = _writer(recipe), Texts("unit-conversion", 300, 96)
    # 6 x 1600 beside 10 x 300 answers of the same length, in batches as full.
    ratio = _seconds(writer, 6) / _seconds(writer, 10, answers)
    assert ratio == pytest.approx(9600 / 3000, rel=1e-6)


def test_a_written_position_costs_a_forward_pass(recipe: Recipe) -> None:
    """Half of a training position with frozen weights, beside reading the weights for each step of
    64 rows.
    """
    computing = 6 * 1600 * 96 * 0.4 * 20.0 / (16 * 192) / 2
    assert computing < _seconds(_writer(recipe), 6) < 1.5 * computing


def test_what_even_one_pass_takes_is_no_part_of_a_written_position(recipe: Recipe) -> None:
    """Steps read the weights as often, and positions take a quarter."""
    fixed = replace(PLAN, fixed_share=0.75)
    saved = 0.75 * 1600 * 96 * 0.4 * 20.0 / (16 * 192) / 2
    assert _seconds(_writer(recipe)) - _seconds(_writer(recipe, fixed)) == pytest.approx(saved)


def test_a_step_of_short_examples_has_fewer_positions(recipe: Recipe) -> None:
    """A fourth of the tokens in a fourth of the time: a position costs the same."""
    predicted = PLAN.predicted
    short = {
        "step_time_s": Prediction(5.0, 2.5, 10.0, "rates"),
        "tokens_per_s": Prediction(16 * 192 / 20, 1.0, 1000.0, "rates"),
    }
    plan = replace(PLAN, predicted={**predicted, **short})
    assert _seconds(_writer(recipe, plan)) == pytest.approx(_seconds(_writer(recipe)))


def test_memory_holds_the_weights_and_the_cache_of_every_row(recipe: Recipe) -> None:
    """A CPU writes 64 texts at once, with a copy of the weights that the adapters are merged in."""
    written = _writer(recipe).write(1, [SAMPLED])
    row_bytes = (96 + 192) * POSITION_BYTES * 4 + LOGITS_BYTES
    assert written.rows == 64
    assert written.memory.value == PARAMETERS * 8 + 64 * row_bytes
    assert written.memory.low == PARAMETERS * 8 + row_bytes


def test_bf16_reads_half_of_the_weights_and_quick_blocks_keep_half_of_the_cache(
    recipe: Recipe,
) -> None:
    plan = replace(PLAN, precision="bf16")
    quick_config = {"config": {"model_type": "llama"}}
    writers = _writer(recipe), _writer(recipe, plan), _writer(recipe, plan, **quick_config)
    computing = 6 * 1600 * 96 * 0.4 * 20.0 / (16 * 192) / 2
    slow, half, quick = (_seconds(each, 6) - computing for each in writers)
    assert half < 0.65 * slow  # beside what a step takes without it
    assert quick == pytest.approx(half / 2)  # twice the rows
    row_bytes = (96 + 192) * POSITION_BYTES * 2 + LOGITS_BYTES
    assert writers[2].write(1, [SAMPLED]).memory.value == PARAMETERS * 6 + 128 * row_bytes


def test_as_many_are_written_at_once_as_fit(recipe: Recipe) -> None:
    """The engine takes four fifths of what the weights leave free, half of that for logits; fewer
    rows read the weights more often, so they take longer.
    """
    row_bytes = (96 + 192) * POSITION_BYTES * 2 + LOGITS_BYTES
    weights_bytes = 2 * PARAMETERS
    roomy, small = (_writer(recipe, ON_GPU, size) for size in (24 * GIB, GIB))
    assert roomy.write(1, [SAMPLED]).rows == 512
    written = small.write(1, [SAMPLED])
    assert written.verdict == "fits"
    assert written.memory.value == weights_bytes + written.rows * row_bytes
    usable = 0.8 * (GIB - weights_bytes)
    cache_bytes = usable - int(usable / 2 / LOGITS_BYTES) * LOGITS_BYTES
    assert written.rows == cache_bytes // (2 * POSITION_BYTES) // (96 + 192)
    assert written.rows * row_bytes < 0.8 * (GIB - weights_bytes)
    assert _seconds(small) > _seconds(roomy)


def test_what_leaves_no_room_for_one_text_does_not_fit(recipe: Recipe) -> None:
    """By hand: 268 MB of weights in 16 bits, and 7 MB for one text."""
    least = 2 * PARAMETERS + (96 + 192) * POSITION_BYTES * 2 + LOGITS_BYTES
    verdicts = [
        _writer(recipe, ON_GPU, size).write(1, [SAMPLED]).verdict
        for size in (least - 1, least + 1, round(LEAST_ROOM * least) + 1)
    ]
    assert verdicts == ["does not fit", "uncertain", "fits"]


def test_another_model_has_weights_and_a_speed_of_its_own(recipe: Recipe) -> None:
    larger = _writer(recipe, ON_GPU, 24 * GIB, parameters=10 * PARAMETERS, is_student=False)
    student = _writer(recipe, ON_GPU, 24 * GIB)
    assert larger.write(1, [SAMPLED]).memory.low > 10 * 2 * PARAMETERS
    assert _seconds(larger) > 5 * _seconds(student)


def test_devices_share_the_texts(recipe: Recipe) -> None:
    """Each reads the weights for its own texts; the step of both together computes them."""
    alone, both = ON_GPU, replace(ON_GPU, devices=2)
    computing = 1600 * 96 * 0.4 * 20.0 / (16 * 192) / 2
    one = _writer(recipe, alone, parameters=PARAMETERS, is_student=False)
    two = _writer(recipe, both, parameters=PARAMETERS, is_student=False)
    assert _seconds(two) - computing == pytest.approx((_seconds(one) - computing) / 2)


def test_without_rates_no_time_is_known(recipe: Recipe) -> None:
    assert _writer(recipe, replace(PLAN, predicted={})).write(1, [SAMPLED]).time_s is None


def test_products_in_bf16_are_filled_up_to_a_multiple_of_rows(recipe: Recipe) -> None:
    few = Texts("", 4, 96)
    assert few.filling(1.0, 4, 1) == 0
    assert few.filling(1.0, 4, 16) == (16 - 4) * 96
    assert replace(few, count=17).filling(1.0, 17, 16) == (32 - 17) * 96
    for precision, rates, fill in (
        ("fp32", {"fp32": 1.0, "bf16": 6.0}, 1),
        ("bf16", {"fp32": 1.0, "bf16": 2.3}, 16),
        ("bf16", {"fp32": 1.0, "bf16": 6.0}, 64),
        ("bf16", {}, 16),
    ):
        device = {**PLAN.device, "dense_flop_per_s": rates}
        writer = _writer(recipe, replace(PLAN, device=device, precision=precision))
        assert writer.fill == fill


def test_rows_that_fill_up_products_take_these_alone(recipe: Recipe) -> None:
    few, rate = Texts("", 4, 96), 1e12
    device = {**PLAN.device, "dense_flop_per_s": {"fp32": rate / 8, "bf16": rate}}
    plan = replace(PLAN, device=device, precision="bf16")
    many = replace(few, count=64)
    seconds = [_seconds(_writer(recipe, plan), 1, each) for each in (few, many)]
    # As many steps, each with 60 rows that are written, or zeros.
    of_rows = 0.4 * 60 * 96 * (20.0 / (16 * 192) / 2 - 2 * PARAMETERS / rate)
    assert seconds[1] - seconds[0] == pytest.approx(of_rows)


def test_a_task_asks_what_its_limit_leaves() -> None:
    asked = task_examples(600, 300), task_examples(164, 300), task_examples(None, None)
    assert asked == (300, 164, 200)


def test_programs_take_longer_to_judge_than_numbers() -> None:
    numbers, programs = (
        verdicts_time(2, replace(SAMPLED, verdict=kind)).value for kind in ("number", "program")
    )
    assert numbers == pytest.approx(2 * 1600 * 0.0002)
    assert programs == pytest.approx(2 * (1600 * 0.1 + 0.3))  # a sandbox is started
