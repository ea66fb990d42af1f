"""Write a run's records as TensorBoard scalars to `RUN/tensorboard`. Steps that a resumed run
repeats do not appear twice.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brimful.report.live.progress import Listener

STEP_SCALARS = (
    "loss",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "memory_bytes",
    "loss_scale",
    "skipped",
)
EVALUATION_SCALARS = (
    "loss",
    "perplexity",
    "bits_per_byte",
    "accuracy",
    "macro_f1",
    "f1",
    "precision",
    "recall",
    "pr_auc",
    "roc_auc",
)


@contextmanager
def tensorboard_listener(run_folder: Path, note: Callable[[str], None]) -> Iterator[Listener]:
    """Write scalars `train/...` and `SPLIT/...` under `run_folder/tensorboard`.

    A missing package or a folder that cannot be written never stops a run: `note` receives the
    reason once, and later records are ignored.

    Args:
        run_folder: The run's folder.
        note: Receives, at most once, the reason why nothing (more) is written.
    """
    writer = _ScalarWriter(run_folder / "tensorboard", note)
    show_traceback = threading.excepthook

    def of_other_threads(problem: threading.ExceptHookArgs) -> None:
        # What ends TensorBoard's own thread is raised again at the next record, and told there.
        if not type(problem.thread).__module__.startswith("tensorboard."):
            show_traceback(problem)

    threading.excepthook = of_other_threads
    try:
        yield writer
    finally:
        writer.close()
        threading.excepthook = show_traceback


class _ScalarWriter:
    """Opens the writer at the first record, because only that one says where a resumed run goes
    on.
    """

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._folder, self._note = folder, note
        self._writer: Any = None
        self._is_off = False

    def __call__(self, record: dict[str, Any]) -> None:
        if self._is_off:
            return
        try:
            self._writer = self._writer or _open_writer(self._folder, _first_new_step(record))
            self._write(record)
        except ImportError as error:
            self._stop(
                f"TensorBoard files are not written: {error}. Install them with `pip install"
                " tensorboard`; metrics.jsonl has the same numbers."
            )
        except OSError as error:
            self._stop(
                f"TensorBoard files are not written any more: {error}. The run goes on;"
                " metrics.jsonl has the same numbers."
            )

    def _write(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "step":
            self._add("train", STEP_SCALARS, record)
        elif kind == "evaluation":
            self._add(str(record.get("split", "validation")), EVALUATION_SCALARS, record)
        if kind in {"evaluation", "checkpoint", "end"}:
            self._writer.flush()

    def _add(self, group: str, names: tuple[str, ...], record: dict[str, Any]) -> None:
        for name in names:
            value = record.get(name)
            if isinstance(value, int | float):
                self._writer.add_scalar(
                    f"{group}/{name}", value, record.get("step"), walltime=record.get("time")
                )

    def _stop(self, message: str) -> None:
        self._is_off = True
        self._note(message)

    def close(self) -> None:
        """Write pending points and close the file. A second call does nothing."""
        if self._writer is None or self._is_off:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._stop(
                f"The last TensorBoard points could not be written: {error}. metrics.jsonl holds"
                " them all."
            )
        self._is_off = True


def _first_new_step(record: dict[str, Any]) -> int:
    """Return the step from which on points of an earlier process are void."""
    step = int(record.get("step") or 0)
    return step + 1 if record.get("kind") == "start" and record.get("resumed") else step


def _open_writer(folder: Path, first_new_step: int) -> Any:
    # Its absence must not stop a run.
    from torch.utils.tensorboard import (  # noqa: PLC0415
        SummaryWriter,
    )

    return SummaryWriter(log_dir=str(folder), purge_step=first_new_step)
