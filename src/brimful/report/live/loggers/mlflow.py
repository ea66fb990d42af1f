"""MLflow: a server or a local database, as MLflow's own settings say (MLFLOW_TRACKING_URI).
Sessions of a run go on with one run, which is found by the tag `brimful.run`.
"""

import time
from typing import Any

from brimful.base.dotted import flatten
from brimful.base.types import Counts, Json, Numbers
from brimful.report.live.logger import LoggedRun, Logger, from_extra

DEFAULT_EXPERIMENT = "brimful"
TAG = "brimful.run"
MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 500
"""Limits of MLflow: metrics and parameters in one request, characters in a parameter's value."""


class _MlflowLog:
    def __init__(self, run: LoggedRun) -> None:
        # An extra.
        from mlflow import MlflowClient  # noqa: PLC0415

        self._client: Any = MlflowClient()
        experiment = self._experiment(run.project or DEFAULT_EXPERIMENT)
        known = self._client.search_runs([experiment], f"tags.`{TAG}` = '{run.run_id}'")
        self.held: Counts = run.recorded if known else {}
        self._pending: list[Any] = []
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(experiment, run_name=run.folder.name, tags={TAG: run.run_id})
        self._id = made.info.run_id
        self._add_params(run.settings)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _add_params(self, settings: Json) -> None:
        from mlflow.entities import Param  # noqa: PLC0415

        params = [
            Param(key, str(value)[:LONGEST_PARAM]) for key, value in flatten(settings).items()
        ]
        for begin in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[begin : begin + MOST_PARAMS])

    def add(self, group: str, values: Numbers, step: int, unix_s: float | None) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        unix_ms = int(1000 * (unix_s or time.time()))
        self._pending += [
            Metric(f"{group}/{name}", value, unix_ms, step) for name, value in values.items()
        ]
        if len(self._pending) >= MOST_METRICS:
            self.flush()

    def flush(self) -> None:
        while self._pending:
            self._client.log_batch(self._id, metrics=self._pending[:MOST_METRICS])
            del self._pending[:MOST_METRICS]

    def close(self, is_finished: bool) -> None:
        self.flush()
        self._client.set_terminated(self._id, "FINISHED" if is_finished else "KILLED")


LOGGER = Logger("MLflow", _MlflowLog, from_extra("mlflow"), lambda _: "mlflow ui")
