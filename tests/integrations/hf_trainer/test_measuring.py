"""Steps are timed from one's end to the next's, and memory is looked at now and then."""

import time

import pytest
import torch

from brimful.hardware.process_memory import give_back_free_memory
from brimful.integrations.hf_trainer.measuring import LOOK_EVERY_S, MOST_LOOKS, StepMeter

CPU = torch.device("cpu")


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_step_reaches_from_the_end_of_the_one_before() -> None:
    clock = _Clock()
    meter = StepMeter(CPU, clock)
    for seconds in (5.0, 1.0, 2.0, 3.0):
        clock.now_s += seconds
        meter.step_ended()
    measured = meter.finish()

    assert measured.step_times_s == (5.0, 1.0, 2.0, 3.0)
    assert measured.step_time_s == 2.0  # without the first, which warms up


def test_what_is_left_out_is_in_no_step() -> None:
    clock = _Clock()
    meter = StepMeter(CPU, clock)
    clock.now_s += 7.0
    meter.leave_out()
    clock.now_s += 1.0
    meter.step_ended()

    assert meter.finish().step_times_s == (1.0,)


def test_a_training_without_a_step_has_no_step_time() -> None:
    assert StepMeter(CPU, _Clock()).finish().step_time_s is None


def test_memory_is_not_looked_at_after_every_short_step() -> None:
    clock = _Clock()
    meter = StepMeter(CPU, clock)
    for _ in range(100):
        clock.now_s += LOOK_EVERY_S / 10
        meter.step_ended()

    assert len(meter.finish().looks) == pytest.approx(12, abs=3)


def test_a_long_training_keeps_a_bounded_number_of_looks() -> None:
    clock = _Clock()
    meter = StepMeter(CPU, clock)
    for _ in range(2 * MOST_LOOKS):
        clock.now_s += 2 * LOOK_EVERY_S
        meter.step_ended()

    looks = meter.finish().looks
    assert MOST_LOOKS / 2 <= len(looks) <= MOST_LOOKS + 1
    assert list(looks) == sorted(looks)


def test_memory_that_was_held_between_two_looks_is_seen() -> None:
    give_back_free_memory()  # of earlier tests: it would be taken again, and nothing more held
    meter = StepMeter(CPU, time.perf_counter)
    before = meter.finish().peak_bytes
    held = torch.ones(64 * 2**20 // 4)
    del held
    meter.step_ended()

    assert meter.finish().peak_bytes >= before + 32 * 2**20
