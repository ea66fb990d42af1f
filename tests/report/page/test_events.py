"""Events, and what followed when memory ran out."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.events import event_table, memory_event_table
from brimful.runs.folder import read_run


def test_events_stand_with_their_steps(new_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    records = [
        {"kind": "event", "step": 3, "message": "the loss was not finite"},
        {"kind": "out_of_memory", "step": 1007, "phase": "training", "from": [8, 8], "to": [4] * 4},
    ]
    run = read_run(new_run(metrics=records))
    events, out_of_memory = event_table(run), memory_event_table(run)
    assert events is not None
    assert events.text_rows == snapshot
    assert out_of_memory is not None
    assert out_of_memory.text_rows == (("1,007", "training", "2 x 8", "4 x 4", ""),)
    assert event_table(read_run(new_run("quiet"))) is None
