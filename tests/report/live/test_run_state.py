"""How a run stands, from its records: means, pace, what is shown of it, and no trouble with odd
records.
"""

import pytest
import torch
from run_records import START, FakeClock, step
from syrupy.assertion import SnapshotAssertion

from brimful.report.live.run_state import RunState, age, coarse_duration, describe, percent
from brimful.runs.records import read_record
from brimful.training.methods.dpo import named_values


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_never_enters_the_running_mean(loss: float | None) -> None:
    state = RunState(FakeClock())
    for record in (step(1), step(2, loss=loss)):
        state.update(record)
    assert state.loss == pytest.approx(4.0)
    assert ("last loss", "not finite", "bold red") in state.fields()


def test_what_is_done_before_the_first_step_is_told_with_its_time(
    snapshot: SnapshotAssertion,
) -> None:
    clock = FakeClock()
    state = RunState(clock, {"start_time_s": 40.0}, "compiling")
    state.update(START)
    assert describe(read_record(START), state) == snapshot
    clock.now_s += 12
    assert state.fields() == [("compiling", "12 s (planned 40 s)", "yellow")]
    state.update(step(1))
    assert not [field for field in state.fields() if field[0] == "compiling"]


def test_time_left_follows_the_pace_since_the_first_step_pauses_included() -> None:
    clock = FakeClock()
    state = RunState(clock)
    state.update(START)
    state.update(step(10))
    clock.now_s += 20
    state.update(step(20))
    assert state.remaining_s == pytest.approx(160.0)
    clock.now_s += 10
    assert state.remaining_s == pytest.approx(240.0)


def test_steps_logged_in_one_burst_do_not_make_the_run_look_fast() -> None:
    state = RunState(FakeClock())
    for record in (START, *[step(number) for number in range(1, 11)]):
        state.update(record)
    assert state.remaining_s == pytest.approx(45.0)


def test_a_reward_is_told_before_a_loss_that_is_always_about_0() -> None:
    state = RunState(FakeClock())
    record = step(1, named={"reward": 0.25, "tokens": 40.0})
    state.update(record)
    assert [label for label, _, _ in state.fields()][:3] == ["reward", "loss", "tokens"]
    line = describe(read_record(record), state)
    assert line.index("reward 0.250") < line.index("loss")


def test_the_screen_shows_what_pairs_are_watched_by_and_a_line_of_a_step_the_first_of_it() -> None:
    state = RunState(FakeClock())
    zeros = torch.zeros(2)
    named = {name: float(value) for name, value in named_values(zeros, zeros, zeros).items()}
    record = step(1, named=named)
    state.update(record)

    labels = [label for label, _, _ in state.fields()]
    line = describe(read_record(record), state)

    assert labels[1:6] == ["margin", "accuracy", "reward chosen", "reward rejected", "KL"]
    assert "margin 0.000" in line
    assert "KL" not in line


def test_waiting_for_data_is_shown_from_a_twentieth_of_a_step_on() -> None:
    state = RunState(FakeClock())
    state.update(step(1, loader_wait_s=0.02))
    assert "waits for data" not in {label for label, _, _ in state.fields()}
    state.update(step(2, loader_wait_s=0.155))
    assert ("waits for data", "31 % of a step", "bold yellow") in state.fields()


@pytest.mark.parametrize(
    "kind", ["start", "step", "evaluation", "checkpoint", "event", "out_of_memory", "end", "news"]
)
def test_a_record_with_values_of_odd_types_is_told_like_any_other(kind: str) -> None:
    odd = dict.fromkeys(
        (
            "step",
            "total_steps",
            "tokens_per_step",
            "loss",
            "bytes",
            "seconds",
            "skipped",
            "from",
            "to",
            "memory_bytes",
        ),
        "much",
    )
    state = RunState(FakeClock())
    state.update({"kind": kind, **odd})
    assert describe(read_record({"kind": kind, **odd}), state)
    assert state.remaining_s is None


def test_what_a_session_measured_of_its_loader_is_told(snapshot: SnapshotAssertion) -> None:
    record = {
        "kind": "loader",
        "step": 100,
        "seconds_per_batch": {"1": 0.04, "2": 0.022, "4": 0.021},
    }
    assert describe(read_record(record), RunState(FakeClock())) == snapshot


def test_a_round_of_answers_is_told_with_its_time() -> None:
    record = {"kind": "round", "step": 4, "round": 1, "sampling_s": 11.5, "verifying_s": 0.5}

    planned = {"round_sampling_time_s": 9.0}
    told = describe(read_record(record), RunState(FakeClock(), planned))

    assert told == "step 4  answers: sampling 11.5 s (planned 9.0), verifying 500 ms"
    kept = describe(read_record({"kind": "round", "step": 4}), RunState(FakeClock()))
    assert kept == "step 4  answers: kept from before"


def test_how_long_ago_something_was_is_told_coarsely() -> None:
    assert [age(seconds) for seconds in (-5.0, 12.2, 65.0, 3000.0, 8820.0)] == [
        "1 s",
        "12 s",
        "1m 05s",
        "50m",
        "2h 27m",
    ]


def test_durations_that_change_all_the_time_have_no_fractions() -> None:
    assert [coarse_duration(seconds) for seconds in (0.0, 1.6, 59.6, 3725.0)] == [
        "1 s",
        "2 s",
        "1m 00s",
        "1h 02m",
    ]
    assert [percent(share) for share in (None, 0.124)] == ["", " (12 %)"]
