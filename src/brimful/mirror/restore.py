"""Bringing a run back from its mirror: on a new machine, or if it was trained on elsewhere
meanwhile. The mirror is only read.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from brimful.base.console import Say
from brimful.base.errors import CheckpointError, RunFolderError
from brimful.base.rundir import Lease, fsync_folder
from brimful.base.units import MIB, format_bytes
from brimful.base.warning_codes import as_note
from brimful.mirror.files import Entry, Files, IntegrityError, as_clause
from brimful.mirror.finished import MODEL, FinishedRun
from brimful.mirror.place import FINISHED, Place
from brimful.mirror.points import RUN_FILES, MirroredRun, RecoveryPoint, folder_of_step, local_steps
from brimful.recipe import Recipe, load_text
from brimful.runs.files import RECIPE_FILE, STATUS_FILE
from brimful.training.admission import (
    holds_no_work,
    refuse_other_recipe,
    run_id_of,
    status_of,
    write_status,
)
from brimful.training.checkpoint import verify

ANNOUNCED_FROM_BYTES = 64 * MIB
"""Reading back less than this is quick enough to need no message before it."""
_UNSOUND = (IntegrityError, CheckpointError)
"""Errors after which an older point is tried. A mirror that cannot be read now is not among them:
it may hold a sound point, so it stops the run.
"""


@dataclass(frozen=True)
class MirroredState:
    """What a mirror holds of a run.

    Attributes:
        steps: Steps of its points, newest first.
        called_durable: Whether any point was ever called durable.
    """

    run_id: str
    steps: tuple[int, ...]
    is_finished: bool
    called_durable: bool


def bring_back(
    place: Place,
    run_folder: Path,
    recipe: Recipe,
    say: Say,
    *,
    accept: Sequence[str] = (),
    files: Files | None = None,
) -> None:
    """Restore a run of which this machine holds nothing, or only an older part than the mirror.

    The newest sound recovery point is brought back, or the finished run. An older run here is moved
    aside, never removed.

    Args:
        accept: Keys whose change the user declares, as for `admit`.

    Raises:
        RunFolderError: the mirror belongs to another run, or nothing in it can be trusted.
    """
    mirrored = MirroredRun(place.folder, files or Files())
    try:
        state = place.answer(lambda: _state_of(mirrored))
        if state is not None:
            _Restorer(mirrored, run_folder, recipe, accept, say).bring_back(state)
    except OSError as error:
        raise RunFolderError(
            f"the mirror {place.folder} cannot be read: {as_clause(error)}. Nothing was changed."
            " Mend that and run the same command again; or leave run.mirror out to start without"
            " what it holds."
        ) from error


def refuse_fresh(place: Place, run_folder: Path) -> None:
    """Raise RunFolderError if `--fresh` would replace a finished run in the mirror, or another one
    than is here.
    """
    mirrored = MirroredRun(place.folder, Files())
    state = place.answer(lambda: _state_of(mirrored))
    if state is None:
        return
    if status_of(run_folder) is not None:
        _refuse_another_run(mirrored, run_folder, state)
    if state.is_finished:
        raise RunFolderError(
            f"{place.folder} holds a finished run; --fresh does not replace it. Give the new run a"
            f" name: run.name={place.folder.name}-2"
        )


def set_aside(place: Place) -> Path | None:
    """Move a mirrored run away for a new one of the same name; return its new folder, None if there
    was no run.

    Raises:
        RunFolderError: the mirror does not allow it.
    """
    aside = place.folder.with_name(f"{place.folder.name}.replaced-{_stamp()}")

    def move() -> Path | None:
        if not place.folder.exists():
            return None
        Files().rename(place.folder, aside)
        return aside

    try:
        return place.answer(move)
    except OSError as error:
        raise RunFolderError(
            f"{place.folder} cannot be moved aside: {as_clause(error)}. Move it away, or choose"
            " another run.mirror=PATH."
        ) from error


def _state_of(mirrored: MirroredRun) -> MirroredState | None:
    """Return what a mirror holds; None if there is nothing of a run.

    Raises:
        RunFolderError: something else is there.
    """
    names = [name for name in mirrored.files.names(mirrored.folder) if not name.startswith(".")]
    if not names:
        return None
    steps = tuple(reversed(mirrored.steps()))
    owner = mirrored.owner()
    if owner is not None and owner.token is None:
        owner = None  # the file of this name in a run folder says something else
    run_id = owner.run_id if owner is not None else None
    run_id = run_id or _id_in_copies(mirrored, steps)
    if run_id is None:
        raise RunFolderError(
            f"{mirrored.folder} is not empty and no run's mirror; a run folder is none either. "
            "Choose another folder with run.mirror=PATH, or run.name=NAME."
        )
    called_durable = bool(steps) if owner is None else owner.durable_step is not None
    return MirroredState(run_id, steps, FINISHED in names, called_durable)


def _id_in_copies(mirrored: MirroredRun, steps: Sequence[int]) -> str | None:
    """Return the run's number from its points or its finished copy; None if there is neither."""
    for step in steps:
        try:
            return mirrored.read(step).run_id
        except IntegrityError:
            continue
    if not mirrored.finished_or_empty():
        return None
    try:
        run_id = mirrored.files.read_json(mirrored.folder / STATUS_FILE).get("id")
    except IntegrityError:
        return None
    return run_id if isinstance(run_id, str) else None


def _refuse_another_run(mirrored: MirroredRun, run_folder: Path, state: MirroredState) -> None:
    own = run_id_of(run_folder)
    if state.run_id == own or not (state.called_durable or state.is_finished):
        return
    raise RunFolderError(
        f"{mirrored.folder} belongs to another run than {run_folder}: run {state.run_id}, here"
        f" {own or 'one from before runs had numbers'}. Choose another mirror with run.mirror=PATH"
        f" or another name with run.name=NAME; or move {run_folder} away to continue the run that"
        " is in the mirror."
    )


def _newest_sound(run_folder: Path) -> int:
    """Return the step of the newest local checkpoint that can be trusted; -1 if there is none."""
    for step in reversed(local_steps(run_folder)):
        try:
            verify(folder_of_step(run_folder, step))
        except (CheckpointError, OSError):
            continue
        return step
    return -1


class _Restorer:
    """Restores one run folder; collects what was wrong with each unsound part in `_problems`."""

    def __init__(
        self,
        mirrored: MirroredRun,
        run_folder: Path,
        recipe: Recipe,
        accept: Sequence[str],
        say: Say,
    ) -> None:
        self._mirrored, self._run_folder, self._say = mirrored, run_folder, say
        self._recipe, self._accept = recipe, accept
        self._problems: list[str] = []

    def bring_back(self, state: MirroredState) -> None:
        """Restore the newest sound part of what the mirror holds, if it is newer than the run
        here.
        """
        here = status_of(self._run_folder)
        if here is not None:
            _refuse_another_run(self._mirrored, self._run_folder, state)
        elif not holds_no_work(self._run_folder):
            return  # no run folder; `admit` refuses it
        if here != "finished":
            self._bring_back_newer(state, is_new_here=here is None)
        elif state.is_finished:
            FinishedRun(self._mirrored, self._run_folder).mend(self._say)

    def _bring_back_newer(self, state: MirroredState, *, is_new_here: bool) -> None:
        last = _newest_sound(self._run_folder)
        newer = [step for step in state.steps if step > last]
        is_wanted = state.is_finished and (newer or is_new_here)
        if is_wanted and self._attempt("the finished run", self._finished):
            return
        if any(self._attempt(f"step {step}", partial(self._point, step)) for step in newer):
            return
        if newer and is_new_here and state.called_durable:
            problems = "\n".join(f"  - {problem}" for problem in self._problems)
            raise RunFolderError(
                f"no recovery point in {self._mirrored.folder} can be trusted:\n{problems}\n"
                "Start over with --fresh, which moves it aside, or repair the mirror from a copy."
            )
        self._tell_problems()

    def _attempt(self, what: str, restore: Callable[[], None]) -> bool:
        """Return whether a part was sound and is restored."""
        try:
            restore()
        except _UNSOUND as error:
            self._problems.append(f"{what}: {as_clause(error)}")
            return False
        return True

    def _point(self, step: int) -> None:
        """Restore a point with the best checkpoint that it needs."""
        point, what = self._mirrored.read(step), f"step {step}"
        if run_id_of(self._run_folder) not in {None, point.run_id}:
            raise IntegrityError(f"it belongs to run {point.run_id}")
        run_files = {
            name.removeprefix(f"{RUN_FILES}/"): entry
            for name, entry in point.files.items()
            if name.startswith(f"{RUN_FILES}/")
        }
        source = self._mirrored.path_of(step) / RUN_FILES
        with self._replacing(what, source, run_files[RECIPE_FILE], point.num_bytes) as staging:
            self._fetch(source, run_files, staging)
            if status_of(staging) == "finished":
                # Copied when the run had ended, but a finished run has a model.
                write_status(staging, "stopped", self._recipe)
            self._fetch_checkpoint(point, staging)
            if point.best_step is not None and point.best_step != step:
                self._fetch_best(point.best_step, staging)

    def _finished(self) -> None:
        """Restore the finished run, with those of its checkpoints that are sound: it may be looked
        into, or trained on.
        """
        entries, what = self._mirrored.finished(), "the finished run"
        has_model = any(name.startswith(MODEL) for name in entries)
        if not has_model or not {STATUS_FILE, RECIPE_FILE} <= entries.keys():
            raise IntegrityError("its copy was cut off")
        num_bytes = sum(entry.num_bytes for entry in entries.values())
        source = self._mirrored.folder
        with self._replacing(what, source, entries[RECIPE_FILE], num_bytes) as staging:
            self._fetch(source, entries, staging)
            for step in self._mirrored.steps():
                if not self._attempt(f"step {step}", partial(self._fetch_step, step, staging)):
                    shutil.rmtree(folder_of_step(staging, step), ignore_errors=True)

    @contextmanager
    def _replacing(self, what: str, source: Path, recipe: Entry, num_bytes: int) -> Iterator[Path]:
        """Yield a staging folder that becomes the run folder at the end, and say so.

        Args:
            what: Named in messages.
            source: Folder of the mirror that holds `recipe.yaml`, checked first.
        """
        self._require_same_recipe(what, source / RECIPE_FILE, recipe)
        mirror = self._mirrored.folder
        if num_bytes >= ANNOUNCED_FROM_BYTES:
            self._say(f"reading {what} from the mirror {mirror}, {format_bytes(num_bytes)}")
        with _staging(self._run_folder) as (staging, lease):
            yield staging
            self._move_run_aside()
            fsync_folder(staging)
            lease.release()
            os.rename(staging, self._run_folder)
            fsync_folder(self._run_folder.parent)
        self._tell_problems()
        self._say(
            f"brought back from the mirror {mirror}: {what}, {format_bytes(num_bytes)}, read whole"
        )

    def _require_same_recipe(self, what: str, path: Path, entry: Entry) -> None:
        self._mirrored.files.require(path, entry)
        where = f"the run in the mirror {self._mirrored.folder} ({what})"
        text = b"".join(self._mirrored.files.read(path)).decode(errors="replace")
        stored = load_text(text, f"the recipe of {where}")
        refuse_other_recipe(
            where, stored, self._recipe, self._accept, otherwise="choose run.mirror=PATH"
        )

    def _fetch_checkpoint(self, point: RecoveryPoint, staging: Path) -> None:
        files = {name: entry for name, entry in point.files.items() if "/" not in name}
        target = folder_of_step(staging, point.step)
        target.mkdir(parents=True, exist_ok=True)
        self._fetch(self._mirrored.path_of(point.step), files, target)
        verify(target)
        fsync_folder(target)

    def _fetch_step(self, step: int, staging: Path) -> None:
        self._fetch_checkpoint(self._mirrored.read(step), staging)

    def _fetch_best(self, step: int, staging: Path) -> None:
        try:
            self._fetch_step(step, staging)
        except _UNSOUND as error:
            raise IntegrityError(
                f"the best checkpoint (step {step}), which this recovery point needs, is unusable:"
                f" {as_clause(error)}"
            ) from error

    def _fetch(self, source: Path, entries: dict[str, Entry], target: Path) -> None:
        for name, entry in entries.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            self._mirrored.files.fetch(source / name, target / name, entry)

    def _move_run_aside(self) -> None:
        folder = self._run_folder
        if not folder.exists():
            return
        moved = folder.with_name(f"{folder.name}.behind-{_stamp()}")
        with Lease.acquire(folder):  # refuses a run that is being written
            pass
        has_work = not holds_no_work(folder)
        os.rename(folder, moved)
        if has_work:
            self._say(f"the run here is older than the one in the mirror; it was moved to {moved}")
        else:
            shutil.rmtree(moved, ignore_errors=True)

    def _tell_problems(self) -> None:
        for problem in self._problems:
            self._say(as_note(f"mirror: {problem}; not used", "B324"))


@contextmanager
def _staging(run_folder: Path) -> Iterator[tuple[Path, Lease]]:
    """Yield an empty folder beside the run's, in which one process at a time assembles what becomes
    the run folder, and the lease on it.
    """
    path = run_folder.with_name(f".{run_folder.name}.restoring")
    try:
        path.mkdir(parents=True, exist_ok=True)
        lease = Lease.acquire(path)
        for leftover in path.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            elif leftover.name != Lease.FILE_NAME:
                leftover.unlink()
    except OSError as error:
        raise RunFolderError(
            f"{path.parent} cannot be written: {error}. Choose another place with run.folder=PATH."
        ) from error
    try:
        yield path, lease
    finally:
        lease.release()
        shutil.rmtree(path, ignore_errors=True)


def _stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
