"""Opening the mirror that a recipe's `run.mirror` names, and keeping the copy in it up to date."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from brimful.base.console import Say
from brimful.base.errors import RunFolderError
from brimful.base.warning_codes import as_note
from brimful.mirror.files import Files
from brimful.mirror.finished import FinishedRun
from brimful.mirror.listener import Mirror
from brimful.mirror.mirroring import Mirroring
from brimful.mirror.place import Place
from brimful.mirror.points import MirroredRun
from brimful.mirror.restore import bring_back, refuse_fresh, set_aside
from brimful.recipe import Recipe
from brimful.training.admission import run_id_of, status_of, write_status


class OpenMirror(Mirroring):
    """The mirror of a run that has one."""

    def __init__(self, mirror: Mirror, run_folder: Path, say: Say) -> None:
        self._mirror, self._run_folder, self._say = mirror, run_folder, say

    @contextmanager
    def kept(self, *, fresh: bool = False) -> Iterator[None]:
        if fresh and (moved := set_aside(self._mirror.place)) is not None:
            self._say(f"the unfinished run in the mirror was moved to {moved}")
        with self._mirror.finishing(lambda: status_of(self._run_folder) == "finished"):
            yield

    def listeners(self) -> list[Mirror]:
        self._mirror.start(run_id_of(self._run_folder) or "")
        return [self._mirror]

    def seconds_to_durable(self) -> float:
        return self._mirror.seconds_to_durable()


def opened(
    where: str, recipe: Recipe, run_folder: Path, say: Say, *, fresh: bool, accept: Sequence[str]
) -> OpenMirror:
    """Open the mirror at `where`; see `open_mirror`."""
    place = Place.of(where, run_folder)
    if fresh:
        refuse_fresh(place, run_folder)
    else:
        bring_back(place, run_folder, recipe, say, accept=accept)
    place.require_writable(Files())
    if place.same_disk:
        say(
            as_note(
                f"the mirror {place.root} is on the same disk as the run: it helps if the run"
                " folder is lost, not if the disk fails",
                "B321",
            )
        )
    return OpenMirror(Mirror(place, run_folder, say), run_folder, say)


def bring_up_to_date(where: str, recipe: Recipe, run_folder: Path, say: Say) -> None:
    """Bring the mirror of a finished run up to date; see `catch_up`."""
    try:
        place = Place.of(where, run_folder)
        mirrored = MirroredRun(place.folder, Files())
        if place.answer(lambda: FinishedRun(mirrored, run_folder).is_up_to_date()):
            return
        mirror = Mirror(place, run_folder, say)
    except RunFolderError as error:
        say(as_note(f"mirror: the finished run is NOT in it: {error}", "B322"))
        return
    if run_id_of(run_folder) is None:
        write_status(run_folder, "finished", recipe)
    mirror.start(run_id_of(run_folder) or "", goes_on=False)
    mirror.finish(is_finished=True)
