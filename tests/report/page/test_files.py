"""Every figure as PNG and SVG and every table as CSV lies in the run's folder `files`, with a
README.
"""

from fixture_types import MakeRun, Refuses

from brimful.base.errors import RunFolderError
from brimful.report.page.files import figures, write_files
from brimful.runs.folder import read_run


def test_the_files_of_a_run_are_named_in_the_readme(new_run: MakeRun) -> None:
    folder = new_run(last_step=60)
    written = write_files(read_run(folder))
    names = {path.name for path in written}
    assert written[0].name == "README.txt"
    assert {
        "loss.png",
        "loss.svg",
        "time.png",
        "memory.svg",
        "predictions.csv",
        "steps.csv",
        "plan_choices.csv",
    } <= names
    assert {path.name for path in (folder / "files").iterdir()} == names
    readme = written[0].read_text(encoding="utf-8")
    assert all(path.stem in readme for path in written[1:])
    assert "loss.png, .svg" in readme


def test_a_classifier_has_the_figures_of_its_labels_too(labelled_run: MakeRun) -> None:
    keys = [each.key for each in figures(read_run(labelled_run()))]
    assert {"labels-confusion", "labels-roc", "label-metrics", "loss", "memory"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_a_run_of_which_nothing_is_known_has_a_readme_alone(new_run: MakeRun) -> None:
    folder = new_run(plan=None, environment=None, data=None, scores=None, metrics=[])
    assert [path.name for path in write_files(read_run(folder))] == ["README.txt"]


def test_a_place_that_cannot_be_written_is_a_clear_error(
    new_run: MakeRun, refuses: Refuses
) -> None:
    folder = new_run(last_step=1)
    (folder / "files").write_text("")
    with refuses(RunFolderError):
        write_files(read_run(folder))
