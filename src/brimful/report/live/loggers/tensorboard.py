"""TensorBoard files in `RUN/tensorboard`. Steps that a resumed run repeats replace the earlier
ones.
"""

import shlex
import threading
import time
from pathlib import Path
from typing import Any

from brimful.base.types import Counts, Numbers
from brimful.report.live.logger import LoggedRun, Logger

FOLDER = "tensorboard"


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait until a new file's name comes after those in the folder, a second at most.

    TensorBoard reads files in the order of their names: second, host, process. A session that began
    within a second of another one's end could be read first, and the steps it repeats be lost.
    """
    seconds = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    newest = max((int(text) for text in seconds if text.isdecimal()), default=0)
    time.sleep(min(max(newest + 1 - time.time(), 0.0), 1.0))


class _TensorBoardLog:
    def __init__(self, run: LoggedRun) -> None:
        # Its absence must not stop a run.
        from torch.utils.tensorboard import (  # noqa: PLC0415
            SummaryWriter,
        )

        _wait_for_a_later_name(run.folder / FOLDER)
        self._writer: Any = SummaryWriter(
            log_dir=str(run.folder / FOLDER), purge_step=run.first_new_step
        )
        self._has_failed = False
        self._show_traceback = threading.excepthook
        threading.excepthook = self._of_other_threads

    def _of_other_threads(self, problem: threading.ExceptHookArgs) -> None:
        # What ends TensorBoard's own thread is raised again at the next value, and told there.
        if not type(problem.thread).__module__.startswith("tensorboard."):
            self._show_traceback(problem)

    @property
    def held(self) -> Counts:
        return {}

    def add(self, group: str, values: Numbers, step: int, unix_s: float | None) -> None:
        try:
            for name, value in values.items():
                self._writer.add_scalar(f"{group}/{name}", value, step, walltime=unix_s)
        except OSError:
            self._has_failed = True
            raise

    def flush(self) -> None:
        try:
            self._writer.flush()
        except OSError:
            self._has_failed = True
            raise

    def close(self, is_finished: bool) -> None:
        try:
            if not self._has_failed:  # else it would wait for its own thread, which has ended
                self._writer.close()
        finally:
            threading.excepthook = self._show_traceback


LOGGER = Logger(
    label="TensorBoard",
    open=_TensorBoardLog,
    install=lambda: "Install it with: pip install tensorboard.",
    look=lambda folder: f"tensorboard --logdir {shlex.quote(str(folder / FOLDER))}",
)
