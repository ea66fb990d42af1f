"""MLflow: settings as parameters, and a status that says how the run ended."""

import uuid
from pathlib import Path

import pytest

from brimful.report.live.logger import LoggedRun, logging_listener

pytest.importorskip("mlflow", reason="needs the extra mlflow")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize(
    ("reason", "status"), [("finished", "FINISHED"), ("signal 15", "KILLED"), (None, "KILLED")]
)
def test_settings_are_parameters_and_the_status_says_how_it_ended(
    reason: str | None, status: str, offline: None, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    settings = {"optimizer": {"learning_rate": 0.5}, "note": "x" * 900}
    run = LoggedRun(tmp_path, uuid.uuid4().hex, project="settings", settings=settings)
    notes: list[str] = []
    with logging_listener(["mlflow"], run, notes.append) as listen:
        listen({"kind": "start", "step": 0, "resumed": False})
        listen({"kind": "step", "step": 1, "loss": 2.0})
        if reason:
            listen({"kind": "end", "step": 1, "reason": reason})
    assert notes == []

    client = MlflowClient()
    experiment = client.get_experiment_by_name("settings")
    (found,) = client.search_runs(
        [experiment.experiment_id], f"tags.`brimful.run` = '{run.run_id}'"
    )
    assert found.info.status == status
    assert found.data.params == {"optimizer.learning_rate": "0.5", "note": "x" * 500}
