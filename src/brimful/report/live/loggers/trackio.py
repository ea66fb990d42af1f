"""Trackio: a local database, a self-hosted server or a Space of the hub, as Trackio's own settings
say (TRACKIO_DIR, TRACKIO_SERVER_URL, TRACKIO_SPACE_ID). Sessions of a run go on with one run.
"""

import io
from contextlib import redirect_stdout
from typing import Any

from brimful.base.types import Counts, Numbers
from brimful.report.live.logger import LoggedRun, Logger, from_extra

DEFAULT_PROJECT = "brimful"


class _TrackioLog:
    def __init__(self, run: LoggedRun) -> None:
        # An extra. It prints how to look at the run, which would tear the display.
        with redirect_stdout(io.StringIO()):
            import trackio  # noqa: PLC0415

            self._run: Any = trackio.init(
                project=run.project or DEFAULT_PROJECT,
                name=run.unique_name,
                resume="allow",
                config=dict(run.settings),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        # A run that exists goes on behind its last step; nothing public says so for a server.
        exists = self._run._next_step > 0
        self.held: Counts = run.recorded if exists else {}

    def add(self, group: str, values: Numbers, step: int, unix_s: float | None) -> None:
        self._run.log({f"{group}/{name}": value for name, value in values.items()}, step=step)

    def flush(self) -> None:
        """Trackio's own thread writes twice a second."""

    def close(self, is_finished: bool) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()


LOGGER = Logger("Trackio", _TrackioLog, from_extra("trackio"), lambda _: "trackio show")
