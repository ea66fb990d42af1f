"""Records of a run: written when they are read, in order, to the journal and to everybody who
listens.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from brimful.base.rundir import Journal, read_journal
from brimful.base.types import JsonDict
from brimful.hardware.contention import ThreadTimes
from brimful.training import meter
from brimful.training.meter import DevicePeak, Meter
from brimful.training.precision import Precision
from brimful.training.state import Progress

CPU = torch.device("cpu")


@pytest.fixture
def told() -> list[JsonDict]:
    return []


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "metrics.jsonl")
    yield journal
    journal.close()


def _step(
    progress: Progress,
    recorder: Meter,
    loss: float = 2.0,
    named: dict[str, torch.Tensor] | None = None,
) -> None:
    progress.advance(sequences=4, target_tokens=100)
    recorder.note_step(
        progress,
        loss=torch.tensor(loss),
        grad_norm=torch.tensor(0.5),
        learning_rate=1e-3,
        named=named or {},
    )


def _new(journal: Journal, told: list[JsonDict], total_steps: int = 10) -> tuple[Meter, Progress]:
    return Meter(journal, [told.append], device=CPU, total_steps=total_steps), Progress.fresh(
        Precision("fp32"), CPU
    )


def test_steps_are_told_at_the_flush_with_all_their_fields(
    journal: Journal, told: list[JsonDict]
) -> None:
    recorder, progress = _new(journal, told)
    for _ in range(3):
        _step(progress, recorder)
    assert told == []

    recorder.flush()

    assert [record["step"] for record in told] == [1, 2, 3]
    assert told == list(read_journal(journal.path))
    assert told[1].keys() == {
        "kind",
        "step",
        "loss",
        "grad_norm",
        "learning_rate",
        "tokens",
        "skipped",
        "spikes",
        "loss_scale",
        "tokens_per_second",
        "step_time_s",
        "loader_wait_s",
        "core_wait_s",
        "memory_bytes",
        "time",
    }
    assert (told[1]["loss"], told[1]["tokens"], told[1]["skipped"], told[1]["loss_scale"]) == (
        2.0,
        200,
        0,
        1.0,
    )
    assert told[1]["step_time_s"] > 0
    assert told[1]["tokens_per_second"] == pytest.approx(100 / told[1]["step_time_s"])


def test_a_flush_without_steps_tells_nothing(journal: Journal, told: list[JsonDict]) -> None:
    recorder, _ = _new(journal, told)
    recorder.flush()

    assert told == []


def test_many_steps_are_flushed_without_being_asked(
    journal: Journal, told: list[JsonDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "FLUSH_AFTER_S", math.inf)
    monkeypatch.setattr(meter, "FLUSH_AFTER_STEPS", 3)
    recorder, progress = _new(journal, told)
    for expected in (0, 0, 3, 3):
        _step(progress, recorder)
        recorder.flush_if_due()
        assert len(told) == expected


def test_a_long_run_tells_every_kth_step_and_every_bad_one(
    journal: Journal, told: list[JsonDict]
) -> None:
    recorder, progress = _new(journal, told, total_steps=10 * meter.MOST_STEP_RECORDS)
    for step in range(1, 31):
        if step == 13:
            progress.guard.skipped = torch.tensor(1.0)
        _step(progress, recorder, loss=math.nan if step == 17 else 2.0)
    recorder.flush()

    assert [record["step"] for record in told] == [10, 13, 17, 20, 30]
    assert [record["skipped"] for record in told] == [0, 1, 1, 1, 1]


def test_a_loss_that_is_not_finite_is_told_as_it_is(journal: Journal, told: list[JsonDict]) -> None:
    recorder, progress = _new(journal, told)
    _step(progress, recorder, loss=math.inf)
    recorder.flush()

    assert told[0]["loss"] == math.inf
    (written,) = read_journal(journal.path)
    assert written["loss"] is None
    assert written["nonfinite"] == {"loss": "inf"}


def test_other_records_are_told_at_once(journal: Journal, told: list[JsonDict]) -> None:
    recorder, progress = _new(journal, told)
    progress.advance(sequences=1, target_tokens=1)
    recorder.note_evaluation(progress, {"split": "validation", "loss": 2.5}, best=True)
    recorder.note_checkpoint(1, 1000, 0.25)
    recorder.note_event(progress, "hello")
    recorder.note({"kind": "end", "step": 1})

    assert told == [
        {"kind": "evaluation", "step": 1, "split": "validation", "loss": 2.5, "best": True},
        {"kind": "checkpoint", "step": 1, "bytes": 1000, "seconds": 0.25},
        {"kind": "event", "step": 1, "message": "hello"},
        {"kind": "end", "step": 1},
    ]


def test_peak_memory_of_the_cpu_is_that_of_the_process_and_grows_with_it() -> None:
    peak = DevicePeak(CPU)
    before = peak.look()
    ballast = torch.ones(64 * 1024**2 // 4)

    assert before > 32 * 1024**2
    assert peak.look() - before >= 32 * 1024**2
    assert ballast.sum() > 0


def test_out_of_memory_is_told_at_once_as_it_is_returned(
    journal: Journal, told: list[JsonDict]
) -> None:
    recorder, _ = _new(journal, told)
    record = recorder.note_out_of_memory(7, "training", (8, 3), (4, 4, 2, 1), where="backward pass")
    assert record == {
        "kind": "out_of_memory",
        "step": 7,
        "phase": "training",
        "from": [8, 3],
        "to": [4, 4, 2, 1],
        "where": "backward pass",
    }
    assert told == list(read_journal(journal.path)) == [record]


def test_waiting_for_batches_is_told_as_the_mean_of_the_steps_it_was_for(
    journal: Journal, told: list[JsonDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now_s)
    recorder, progress = _new(journal, told)
    for wait_s in (1.0, 3.0):
        with recorder.waiting():
            now_s += wait_s
        _step(progress, recorder)
    recorder.flush()
    _step(progress, recorder)
    recorder.flush()

    assert [record["loader_wait_s"] for record in told] == [2.0, 2.0, 0.0]


def test_what_other_programs_took_of_a_cpu_is_told_as_the_mean_of_the_steps(
    journal: Journal, told: list[JsonDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = ThreadTimes(0.0, 0.0, {1: 0.0}, thread=1)
    monkeypatch.setattr(meter, "thread_times", lambda: times)
    recorder, progress = _new(journal, told)
    _step(progress, recorder)
    _step(progress, recorder)
    times = ThreadTimes(8.0, 5.0, {1: 3.0}, thread=1)
    recorder.flush()

    assert [(each["step_time_s"], each["core_wait_s"]) for each in told] == [(4.0, 1.5)] * 2


def test_values_that_a_method_names_are_in_the_step_if_there_are_any(
    journal: Journal, told: list[JsonDict]
) -> None:
    """And those of which no sample counted are left out."""
    recorder, progress = _new(journal, told)
    for number in range(2):
        margin, nothing = torch.tensor(0.5 + number), torch.tensor(float("nan"))
        _step(progress, recorder, named={"margin": margin, "other": nothing})
    recorder.flush()
    _step(progress, recorder)
    recorder.flush()

    assert [record.get("named") for record in told] == [{"margin": 0.5}, {"margin": 1.5}, None]
