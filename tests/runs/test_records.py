"""Every line of a journal becomes a record of its kind."""

from brimful.runs.records import (
    EvaluationRecord,
    LoaderRecord,
    OutOfMemoryRecord,
    Record,
    SessionStart,
    StepRecord,
    read_record,
    series,
)


def test_each_kind_has_its_own_class() -> None:
    start = read_record({"kind": "start", "step": 3, "total_steps": 9, "resumed": True})
    assert isinstance(start, SessionStart)
    assert (start.step, start.total_steps, start.resumed) == (3, 9, True)
    ran_out = read_record({"kind": "out_of_memory", "from": [8, 8], "to": [4, 4, 4, 4]})
    assert isinstance(ran_out, OutOfMemoryRecord)
    assert (ran_out.larger, ran_out.smaller) == ((8, 8), (4, 4, 4, 4))
    loader = read_record({"kind": "loader", "seconds_per_batch": {"1": 0.5, "2": 0.3, "x": 1}})
    assert isinstance(loader, LoaderRecord)
    assert loader.seconds_per_batch == {1: 0.5, 2: 0.3}


def test_a_record_of_an_unknown_kind_keeps_its_step() -> None:
    record = read_record({"kind": "news", "step": 4, "time": 5.0})
    assert type(record) is Record
    assert (record.kind, record.step, record.time) == ("news", 4, 5.0)


def test_an_objective_that_is_no_number_is_not_replaced_by_the_loss() -> None:
    of_loss = read_record({"kind": "evaluation", "loss": 2.0})
    of_metric = read_record({"kind": "evaluation", "loss": 2.0, "objective": None, "f1": 0.5})
    assert isinstance(of_loss, EvaluationRecord)
    assert isinstance(of_metric, EvaluationRecord)
    assert (of_loss.minimized, of_metric.minimized) == (2.0, None)
    assert of_metric.metrics == {"loss": 2.0, "f1": 0.5}


def test_a_series_leaves_out_what_is_no_number() -> None:
    values = [2.0, None, float("inf"), 1.0]
    records = [
        read_record({"kind": "step", "step": place, "loss": value})
        for place, value in enumerate(values)
    ]
    assert isinstance(records[0], StepRecord)
    assert series(records, "loss") == ([0, 3], [2.0, 1.0])
