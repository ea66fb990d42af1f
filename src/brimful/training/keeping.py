"""Checkpoints of runs that end before their last step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brimful.base.errors import RequestError, TrainingStopped
from brimful.training.state import Progress

if TYPE_CHECKING:
    from brimful.training.loop import Parts


def keep(parts: "Parts", progress: Progress) -> None:
    """Write a checkpoint before the run ends, unless its last steps were bad: a rollback has to
    return to before them.
    """
    if progress.step > 0 and not progress.is_in_doubt:
        parts.meter.flush()
        parts.save(progress)


@contextmanager
def kept_where_it_fails(parts: "Parts", progress: Progress, failed: str) -> Iterator[None]:
    """While entered, turn a RequestError into the end of a run whose progress is kept."""
    try:
        yield
    except RequestError as error:
        if not parts.is_sharded:
            keep(parts, progress)
        raise TrainingStopped(f"{failed}: {error} What was trained so far is kept.") from error
