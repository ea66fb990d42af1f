"""Rounds of sampling and training, planned as a whole."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from brimful.planning.chain import AskedTexts, ChainPhase, chain_phases, task_examples, total_of
from brimful.planning.plan import Plan, Prediction
from brimful.recipe import Recipe, load

CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "vocab_size": 49152,
}
PLAN = Plan(
    recipe="rounds",
    device={"name": "a device", "kind": "cpu"},
    choices=(),
    micro_batches=(16,),
    precision="fp32",
    attention="sdpa",
    recompute=False,
    compile=False,
    loss_chunk=16,
    threads=1,
    parameters=134_515_008,
    sequence_length=192,
    total_steps=42,
    predicted={
        "peak_memory_bytes": Prediction(2e9, 1.5e9, 3e9, "a trace"),
        "step_time_s": Prediction(20.0, 10.0, 40.0, "rates"),
        "total_time_s": Prediction(900.0, 450.0, 1800.0, "42 steps"),
    },
    memory_terms={"weights": 538_060_032},
)
SAMPLED, TASK = AskedTexts("400 questions", 1600, 96), AskedTexts("unit-conversion", 300, 96)


@pytest.fixture
def recipe() -> Recipe:
    return load("unit-rft-smollm2", ["rft.rounds=2", "rft.seeds=[1,2,3]"])


Phases = Callable[..., dict[str, ChainPhase]]


@pytest.fixture
def phases(recipe: Recipe) -> Phases:
    def of(
        plan: Plan = PLAN, sampled: AskedTexts | None = SAMPLED, **config: str
    ) -> dict[str, ChainPhase]:
        assert recipe.rft is not None
        found = chain_phases(recipe, recipe.rft, plan, CONFIG | config, sampled, [TASK])
        return {phase.name: phase for phase in found}

    return of


def _seconds(phase: ChainPhase) -> float:
    assert phase.time_s is not None
    assert phase.time_s.low < phase.time_s.value < phase.time_s.high
    return phase.time_s.value


def test_every_training_drawing_and_scored_model_counts(phases: Phases) -> None:
    """Two rounds after the demonstrations, with three seeds; the base answers the tasks, too."""
    found = phases()
    assert [*found] == ["training", "sampling", "verifying", "task answers"]
    assert _seconds(found["training"]) == 9 * 900
    drawn, answered = _seconds(found["sampling"]), _seconds(found["task answers"])
    # 6 x 1600 beside 10 x 300 answers of the same length, in batches as full.
    assert drawn / answered == pytest.approx(9600 / 3000, rel=1e-6)
    total = total_of([*found.values()])
    assert total is not None
    assert total.value == pytest.approx(sum(map(_seconds, found.values())))


def test_a_written_position_costs_a_forward_pass(phases: Phases) -> None:
    """Half of a training position with frozen weights, beside reading the weights for each step of
    64 rows.
    """
    position_s = 20.0 / (16 * 192) / 2
    tokens = 6 * 1600 * 96 * 0.4
    computing = tokens * position_s
    assert computing < _seconds(phases()["sampling"]) < 1.5 * computing


def test_memory_holds_the_weights_and_the_cache_of_every_row(phases: Phases) -> None:
    peak = phases()["sampling"].peak_bytes
    cache = 64 * (96 + 192) * 2 * 30 * 3 * 64 * 4
    assert peak is not None
    assert peak >= 4 * 134_515_008 + cache


def test_bf16_reads_half_of_the_weights_and_quick_blocks_keep_half_of_the_cache(
    phases: Phases,
) -> None:
    plan = replace(PLAN, precision="bf16")
    slow, half, quick = (
        each["sampling"] for each in (phases(), phases(plan), phases(plan, model_type="llama"))
    )
    computing = 6 * 1600 * 96 * 0.4 * 20.0 / (16 * 192) / 2
    reading = [_seconds(each) - computing for each in (slow, half, quick)]
    assert reading[1] < 0.65 * reading[0]  # beside what a step takes without it
    assert reading[2] == pytest.approx(reading[1] / 2)  # twice the rows
    per_position = 2 * 30 * 3 * 64
    assert slow.peak_bytes is not None
    assert quick.peak_bytes is not None
    logits = 49152 * 13
    assert quick.peak_bytes == 134_515_008 * 6 + 128 * ((96 + 192) * per_position * 2 + logits)


def test_what_is_not_known_is_not_added_up(phases: Phases) -> None:
    unread = phases(sampled=None)
    assert unread["sampling"].time_s is None
    assert "rft.questions.max_questions=N" in unread["sampling"].about
    assert total_of([*unread.values()]) is None
    untimed = phases(replace(PLAN, predicted={}))
    assert all(untimed[name].time_s is None for name in ("training", "sampling", "task answers"))


def test_a_task_asks_what_its_limit_leaves() -> None:
    assert [task_examples(600, 300), task_examples(164, 300), task_examples(None, None)] == [
        300,
        164,
        200,
    ]
