"""Rounds of rewarded answers: what they take beside the updates."""

from dataclasses import replace

import pytest

from brimful.planning.plan import Plan, Prediction
from brimful.planning.rounds import AnswerRounds, seconds_of_round, time_shares
from brimful.planning.rows import as_rows
from brimful.planning.target import GROWTH_WITH_KERNELS_BYTES
from brimful.planning.vllm_share import VLLM
from brimful.planning.writing import COPIED_WEIGHT_S, Texts
from brimful.recipe import Recipe, load
from brimful.recipe.rewards import learned_share

GIB = 2**30
PLAN = Plan(
    recipe="unit-grpo",
    device={"name": "a device", "kind": "cpu", "memory_bytes": 64 * GIB},
    choices=(),
    micro_batches=(16,) * 4,
    precision="fp32",
    attention="sdpa",
    recompute=False,
    compile=False,
    loss_chunk=16,
    threads=1,
    parameters=139_400_000,
    sequence_length=160,
    total_steps=40,
    predicted={
        "peak_memory_bytes": Prediction(2e9, 1.5e9, 3e9, "a trace"),
        "step_time_s": Prediction(12.0, 6.0, 24.0, "rates"),
    },
    memory_terms={"weights": 538_060_032, "optimizer states": 39_000_000},
)
UPDATES = 40


def _recipe(*changes: str) -> Recipe:
    return load("unit-grpo", ["model=smollm2-135m-instruct", *changes])


def _rounds(*changes: str) -> AnswerRounds:
    return AnswerRounds(_recipe(*changes), PLAN, 64 * GIB)


def test_a_round_is_drawn_for_so_many_updates() -> None:
    rounds = _rounds("rewards.batches=2", "rewards.passes=2")
    assert (rounds.answers, rounds.count(UPDATES), rounds.count(UPDATES + 1)) == (128, 10, 11)
    assert rounds.asked.what == "16 questions x 8"


def test_answers_are_counted_where_a_batch_is_counted_in_full_rows() -> None:
    recipe = _recipe("batch.sequences=8", "rewards.samples_per_prompt=4")
    counted = as_rows(recipe, positions_per_example=60, train_examples=100)
    rounds = AnswerRounds(counted, PLAN, 64 * GIB)
    assert counted.effective_batch == 3
    assert (rounds.answers, rounds.asked.what) == (8, "2 questions x 4")
    assert counted.loss_options == recipe.loss_options


def test_few_answers_take_the_steps_of_the_longest_and_a_copy_of_the_weights() -> None:
    few, many = _rounds("batch.sequences=8").drawing(1).time_s, _rounds().drawing(1).time_s
    assert few is not None
    assert many is not None
    assert many.value / 8 + PLAN.parameters * COPIED_WEIGHT_S < few.value < many.value
    texts = Texts("", 8, 100, at_once=True)
    assert [texts.steps(share, 8) for share in (0.1, 0.4, 1.0)] == [25, 100, 100]
    assert replace(texts, at_once=False).steps(0.4, 8) == 40
    assert replace(texts, count=80).steps(0.4, 8) == 400


def test_times_are_those_of_all_rounds_and_scale_with_them() -> None:
    rounds = _rounds()
    all_times, one = rounds.times(UPDATES), rounds.times(1)
    assert all_times.keys() == {"sampling_time_s", "verifying_time_s", "scoring_time_s"}
    for name in ("sampling_time_s", "verifying_time_s"):
        assert all_times[name].value == pytest.approx(UPDATES * one[name].value)
    shown = seconds_of_round(rounds.recipe, PLAN)
    assert shown == {f"round_{name}": each.value for name, each in one.items()}


def test_answers_are_scored_in_every_round_only_where_updates_need_it() -> None:
    once, always = _rounds(), _rounds("rewards.passes=2")
    assert not once.scores_all
    assert always.scores_all
    # Every answer is scored; updates are expected to learn from half of them.
    assert once.times(UPDATES)["scoring_time_s"].value == pytest.approx(24.0 / 2)
    assert always.times(UPDATES)["scoring_time_s"].value == pytest.approx(20 * 24.0 / 2)


def test_programs_take_longer_to_verify() -> None:
    numbers, programs = _rounds(), _rounds("rewards.verifiers={mbpp: 1.0}")
    own = _rounds("rewards.verifiers={number: 1.0, style.py: 0.1}")
    assert own.rules.runs_programs
    took = [each.times(UPDATES)["verifying_time_s"].value for each in (numbers, programs, own)]
    assert took[0] < took[1] == took[2]


def test_optimizer_states_stay_while_answers_are_drawn() -> None:
    rounds = _rounds()
    without = replace(PLAN, memory_terms={**PLAN.memory_terms, "optimizer states": 0})
    less = AnswerRounds(rounds.recipe, without, 64 * GIB)
    apart = rounds.drawing(1).tensors_bytes - less.drawing(1).tensors_bytes
    assert apart == PLAN.memory_terms["optimizer states"]
    assert rounds.drawing(1).most_rows > rounds.drawing(1).rows > 0
    assert rounds.held_out(4).rows == 4


def test_tensors_of_drawing_are_counted_on_a_cpu() -> None:
    """Weights, optimizer states, adapters merged into copies in fp32, and the answers' keys."""
    terms = {"weights": 538_060_032, "adapters": 19_537_920, "optimizer states": 39_000_000}
    plan = replace(PLAN, memory_terms={**terms, "process": 200_000_000})
    drawn = AnswerRounds(_recipe(), plan, 64 * GIB).drawing(1)
    layers = PLAN.parameters - 19_537_920 // 4 - 49_152 * 576
    keys = 64 * 192 * 2 * 30 * 3 * 64 * 4
    assert 0 < drawn.tensors_bytes - sum(terms.values()) - 4 * layers - keys < 120e6
    doubt = GROWTH_WITH_KERNELS_BYTES[1]
    assert drawn.memory.low == 200_000_000 - doubt + drawn.tensors_bytes < drawn.memory.value
    on_gpu = replace(plan, device={**PLAN.device, "kind": "cuda"})
    assert not AnswerRounds(_recipe(), on_gpu, 64 * GIB).drawing(1).tensors_bytes


def test_a_plan_has_the_peak_of_the_phase_that_needs_most() -> None:
    rounds = _rounds()
    drawn = rounds.drawing(1).memory
    less, more = (
        replace(PLAN, predicted={**PLAN.predicted, "peak_memory_bytes": Prediction(*ends, "")})
        for ends in ((5e8, 4e8, 6e8), (9e9, 8e9, 9.9e9))
    )
    peaks = [
        replace(rounds, plan=plan).with_peak().predicted["peak_memory_bytes"]
        for plan in (less, more)
    ]
    assert (peaks[0].value, peaks[0].low, peaks[0].high) == (drawn.value, drawn.low, drawn.high)
    assert peaks[1] == more.predicted["peak_memory_bytes"]


def test_an_update_holds_less_where_answers_are_short_or_share_their_question() -> None:
    """Sixteen answers of at most 100 to four questions of 20 tokens, in rows of 120."""
    grows, slack = {"activations": 800_000_000, "temporaries": 160_000_000}, 100_000_000
    terms = {**PLAN.memory_terms, **grows, "allocator slack": slack}
    peak = Prediction(9e9, 8e9, 9.9e9, "a trace")
    plan = replace(PLAN, memory_terms=terms, predicted={"peak_memory_bytes": peak})
    sizes = ("batch.sequences=16", "rewards.samples_per_prompt=4", "rewards.max_new_tokens=100")
    recipe = as_rows(
        _recipe(*sizes, "sequence_length=120"), positions_per_example=60, train_examples=100
    )
    for rows in (8, 16):
        found = AnswerRounds(recipe, replace(plan, micro_batches=(rows,)), 64 * GIB).with_peak()
        peak = found.predicted["peak_memory_bytes"]
        short, usual, full = (
            max(0, 1 - 16 * (20 / 4 + answer) / (rows * 120)) for answer in (15, 40, 100)
        )
        assert peak.low == pytest.approx(8e9 - short * 960_000_000)
        assert peak.value == pytest.approx(9e9 - usual * (960_000_000 + slack))
        assert peak.high == pytest.approx(9.9e9 - full * 960_000_000)
    assert full > 0
    padded = recipe.model_copy(
        update={"plan": recipe.plan.model_copy(update={"packing": "padded"})}
    )
    found = AnswerRounds(padded, replace(plan, micro_batches=(16,)), 64 * GIB).with_peak()
    assert found.predicted["peak_memory_bytes"].high == 9.9e9
    on_gpu = replace(plan, device={**PLAN.device, "kind": "cuda"}, micro_batches=(8,))
    peaks = AnswerRounds(recipe, on_gpu, 64 * GIB).with_peak().predicted
    assert peaks["peak_memory_bytes"].low == 8e9


def test_phases_compute_every_answer_where_updates_learn_from_some() -> None:
    assert learned_share(_recipe()) == (0.1, 0.5, 1.0)
    assert learned_share(_recipe("rewards.kl=0.1")) == learned_share(load("lora")) == (1, 1, 1)
    few = _recipe("batch.sequences=4", "rewards.samples_per_prompt=4")
    assert learned_share(few) == (0.25, 0.5, 1.0)
    some, every = (
        AnswerRounds(_recipe("rewards.passes=2", f"rewards.kl={kl}"), PLAN, 64 * GIB).times(2)
        for kl in (0.0, 0.1)
    )
    assert some["scoring_time_s"].value == 2 * every["scoring_time_s"].value
    assert some["sampling_time_s"].value > 1.1 * every["sampling_time_s"].value


def test_a_step_shrinks_and_grows_with_its_positions_but_for_its_fixed_part() -> None:
    """Questions of 20 tokens and answers of at most 100, of which 40 are expected."""
    recipe, learned = _recipe("rewards.max_new_tokens=100"), (0.1, 0.5, 1.0)
    assert time_shares(recipe, "cpu", 0.2, learned) == pytest.approx((0.28, 0.6, 1.0))
    counted = as_rows(recipe, positions_per_example=60, train_examples=100)
    # On CPUs the eight answers to a question share its tokens: 42.5 positions; 17.5 of short ones.
    short, full = (2.5 + 15) / 42.5, (2.5 + 100) / 42.5
    found = time_shares(counted, "cpu", 0.2, learned)
    assert found == pytest.approx((0.2 + 0.8 * 0.1 * short, 0.6, full))
    assert time_shares(counted, "cuda", 0.0, learned)[2] == pytest.approx(120 / 60)


def test_phases_compute_every_answer_of_a_step_that_has_a_fixed_part() -> None:
    """What a plan says of an update that learns from some of the answers is undone for others."""
    plan, learned = replace(PLAN, fixed_share=0.2), learned_share(_recipe())
    recipe = as_rows(_recipe(), positions_per_example=90, train_examples=1000)
    whole = Prediction(20.0, 18.0, 24.0, "")
    low, value, high = time_shares(recipe, "cpu", 0.2, learned)
    some = Prediction(value * whole.value, low * whole.low, high * whole.high, "")
    tokens = Prediction(1000.0, 500.0, 2000.0, "")
    predicted = {"step_time_s": some, "tokens_per_s": tokens}
    scored = AnswerRounds(recipe, replace(plan, predicted=predicted), 64 * GIB).times(1)
    every = time_shares(recipe, "cpu", 0.2, (1.0, 1.0, 1.0))
    expected = (whole.value / 2, every[0] * whole.low / 2, every[2] * whole.high / 2)
    found = scored["scoring_time_s"]
    assert (found.value, found.low, found.high) == pytest.approx(expected)


def test_other_runs_have_no_rounds() -> None:
    assert seconds_of_round(load("lora"), PLAN) == {}
    unknown = replace(PLAN, predicted={})
    assert seconds_of_round(_recipe(), unknown) == {}


def test_what_vllm_holds_stays_in_every_phase_and_widens_the_time_of_drawing() -> None:
    plan = replace(PLAN, memory_terms={**PLAN.memory_terms, VLLM: 2 * GIB})
    rounds = AnswerRounds(_recipe("plan.sampling=vllm"), plan, 64 * GIB)
    alone = _rounds()

    drawn, held_out = rounds.drawing(1), rounds.held_out(4)
    assert drawn.rows == drawn.most_rows == 64
    assert drawn.memory.low < sum(plan.memory_terms.values()) <= drawn.memory.value
    assert held_out.tensors_bytes - alone.held_out(4).tensors_bytes == 2 * GIB
    times = drawn.time_s, alone.drawing(1).time_s
    assert times[0] is not None
    assert times[1] is not None
    assert (times[0].low, times[0].high) == (times[1].low / 3, times[1].high * 3)
    scored = [each.times(UPDATES)["scoring_time_s"].value for each in (rounds, alone)]
    assert scored[0] == 2 * scored[1]
