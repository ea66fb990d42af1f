"""What takes all records of a run is worked out once for each time that the run is read."""

from fixture_types import MakeRun

from brimful.report.time_spent import time_spent
from brimful.runs.folder import RunFolder, read_run
from brimful.runs.measurements import measured
from brimful.runs.sessions import once_per_run


def test_an_answer_is_worked_out_once_and_with_its_own_run(new_run: MakeRun) -> None:
    asked = []

    @once_per_run
    def answer(run: RunFolder) -> str:
        asked.append(run.name)
        return run.folder.name

    first, second = read_run(new_run("a", last_step=1)), read_run(new_run("b", last_step=1))
    assert [answer(first), answer(second), answer(first)] == ["a", "b", "a"]
    assert len(asked) == 2
    assert first == read_run(first.folder)


def test_measurements_are_of_the_run_as_it_was_read(new_run: MakeRun) -> None:
    folder = new_run()
    run = read_run(folder)
    assert measured(run) is measured(run)
    assert time_spent(run) is time_spent(run)
    (folder / "metrics.jsonl").write_text("")
    assert "step_time_s" in measured(run)
    assert "step_time_s" not in measured(read_run(folder))
