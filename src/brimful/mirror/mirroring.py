"""The mirror of a run as its training meets it. Most runs have none, and then nothing of this room
is loaded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from brimful.base.console import Say
from brimful.recipe import Recipe
from brimful.training.meter import Listener


class Mirroring:
    """The mirror of a run while it is trained; this one is of a run that has none."""

    @contextmanager
    def kept(self, *, fresh: bool = False) -> Iterator[None]:
        """Around the session of a claimed run: copy what the mirror lacks when it ends.

        Args:
            fresh: The run starts over; the mirror's copy of an earlier one is moved away.
        """
        del fresh
        yield

    def listeners(self) -> Sequence[Listener]:
        """Begin to copy the run; return the mirror, which listens to the run's records."""
        return []

    def seconds_to_durable(self) -> float:
        """`Mirror.seconds_to_durable`; 0 without a mirror."""
        return 0.0


def open_mirror(
    recipe: Recipe, run_folder: Path, say: Say, *, fresh: bool = False, accept: Sequence[str] = ()
) -> Mirroring:
    """Open the mirror that a recipe asks for, and bring back what it holds of the run and this
    machine does not.

    Raises:
        RunFolderError: the mirror cannot be used, belongs to another run, or nothing in it can be
            trusted.
    """
    if recipe.run.mirror is None:
        return Mirroring()
    from brimful.mirror.opening import opened  # noqa: PLC0415

    return opened(recipe.run.mirror, recipe, run_folder, say, fresh=fresh, accept=accept)


def catch_up(recipe: Recipe, run_folder: Path, say: Say) -> None:
    """Bring the mirror of a finished run up to date; say why if that fails. Called once, after the
    last write into the run folder.
    """
    if recipe.run.mirror is None:
        return
    from brimful.mirror.opening import bring_up_to_date  # noqa: PLC0415

    bring_up_to_date(recipe.run.mirror, recipe, run_folder, say)
