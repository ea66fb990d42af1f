"""Bringing a run back from its mirror: on a new machine, or where it was trained on elsewhere
meanwhile. The mirror is only read.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.errors import CheckpointError, RunFolderError
from brimful.base.rundir import Lease, fsync_folder
from brimful.base.units import MIB, format_bytes
from brimful.mirror.files import Entry, Files, NotWhole, in_words
from brimful.mirror.finished import mend
from brimful.mirror.place import Place, within_limit
from brimful.mirror.points import RUN_FILES, MirroredRun, Point
from brimful.mirror.sources import FINISHED, folder_of_step, local_steps
from brimful.mirror.status import STATUS
from brimful.recipe import Recipe, load_text
from brimful.training.admission import (
    is_husk,
    refuse_other_recipe,
    run_id_of,
    status_of,
    write_status,
)
from brimful.training.checkpoint import verify

Say = Callable[[str], None]
TOLD_FROM_BYTES = 64 * MIB
"""What is smaller is brought back before anybody wonders."""
_UNSOUND = (NotWhole, CheckpointError)
"""What keeps a point from being used, but not an older one. A mirror that cannot be read now may
hold a sound one: that stops the run.
"""


@dataclass(frozen=True)
class _Found:
    """What a mirror holds of a run.

    Attributes:
        steps: Of its points, newest first.
        called_durable: Some point was.
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
    """Restore a run that the mirror holds and this machine does not, or holds only an older part
    of.

    The newest sound recovery point is brought back, or the finished run. What is in the way is
    moved aside, never removed.

    Args:
        accept: Keys whose change the user declares, as for `admit`.

    Raises:
        RunFolderError: the mirror belongs to another run, or nothing in it can be trusted.
    """
    mirrored = MirroredRun(place.folder, files or Files())
    try:
        found = within_limit(str(place.root), lambda: _look(mirrored))
        if found is not None:
            _bring_back(
                place,
                mirrored,
                found,
                run_folder,
                _Restore(mirrored, run_folder, recipe, tuple(accept), say),
                say,
            )
    except OSError as error:
        raise RunFolderError(
            f"the mirror {place.folder} cannot be read: {in_words(error)}. Nothing was changed."
            " Mend that and run the same command again; or leave run.mirror out to start without"
            " what it holds."
        ) from error


def _bring_back(
    place: Place,
    mirrored: MirroredRun,
    found: "_Found",
    run_folder: Path,
    restore: "_Restore",
    say: Say,
) -> None:
    here = status_of(run_folder)
    if here is None and not is_husk(run_folder):
        return  # something else is there, which `admit` refuses
    if here is not None:
        _refuse_another_run(place, run_folder, found)
    if here == "finished":
        if found.is_finished:
            mend(mirrored, run_folder, say)
        return
    last = -1 if here is None else _newest_sound(run_folder)
    newer = [step for step in found.steps if step > last]
    if found.is_finished and (newer or here is None) and restore.finished():
        return
    if any(restore.point(step) for step in newer):
        return
    if newer and here is None and found.called_durable:
        raise RunFolderError(
            f"no recovery point in {mirrored.folder} can be trusted:\n{restore.told()}\n"
            "Start over with --fresh, which moves it aside, or repair the mirror from a copy."
        )
    restore.tell_problems()


def refuse_fresh(place: Place, run_folder: Path, files: Files | None = None) -> None:
    """Raises RunFolderError where `--fresh` would replace a finished run in the mirror, or another
    one than is here.
    """
    found = within_limit(
        str(place.root), lambda: _look(MirroredRun(place.folder, files or Files()))
    )
    if found is not None and status_of(run_folder) is not None:
        _refuse_another_run(place, run_folder, found)
    if found is not None and found.is_finished:
        raise RunFolderError(
            f"{place.folder} holds a finished run; --fresh does not replace it. Give the new run a"
            f" name: run.name={place.folder.name}-2"
        )


def set_aside(place: Place, files: Files | None = None) -> Path | None:
    """Move a mirrored run away for a new one of the same name; returns where to, None where there
    was none.

    Raises:
        RunFolderError: the mirror does not let it.
    """
    aside = place.folder.with_name(f"{place.folder.name}.replaced-{_stamp()}")

    def move() -> Path | None:
        if not place.folder.exists():
            return None
        (files or Files()).rename(place.folder, aside)
        return aside

    try:
        return within_limit(str(place.root), move)
    except OSError as error:
        raise RunFolderError(
            f"{place.folder} cannot be moved aside: {in_words(error)}. Move it away, or choose"
            " another run.mirror=PATH."
        ) from error


def _look(mirrored: MirroredRun) -> _Found | None:
    """What is there; None where there is nothing of a run.

    Raises:
        RunFolderError: something else is there.
    """
    names = [name for name in mirrored.files.names(mirrored.folder) if not name.startswith(".")]
    if not names:
        return None
    steps = tuple(reversed(mirrored.steps()))
    values = _identity(mirrored)
    run_id = values.get("run_id") or _id_in_copies(mirrored, steps)
    if run_id is None:
        raise RunFolderError(
            f"{mirrored.folder} is not empty and no run's mirror; a run folder is none either. "
            "Choose another folder with run.mirror=PATH, or run.name=NAME."
        )
    called_durable = values.get("durable_step") is not None if values else bool(steps)
    return _Found(run_id, steps, FINISHED in names, called_durable)


def _identity(mirrored: MirroredRun) -> dict[str, Any]:
    """What the mirror says of itself; empty where it does not. A run folder has a file of the same
    name that says something else.
    """
    try:
        values = mirrored.files.read_json(mirrored.folder / STATUS)
    except NotWhole:
        return {}
    return values if isinstance(values, dict) and "writer" in values else {}


def _id_in_copies(mirrored: MirroredRun, steps: Sequence[int]) -> str | None:
    """The run's number as its points have it, or its finished copy; None where there is neither."""
    for step in steps:
        try:
            return mirrored.read(step).run_id
        except NotWhole:
            continue
    try:
        found: str | None = (
            mirrored.files.read_json(mirrored.folder / "run.json").get("id")
            if mirrored.finished()
            else None
        )
    except NotWhole:
        return None
    return found


def _refuse_another_run(place: Place, run_folder: Path, found: _Found) -> None:
    own = run_id_of(run_folder)
    if found.run_id == own or not (found.called_durable or found.is_finished):
        return
    raise RunFolderError(
        f"{place.folder} belongs to another run than {run_folder}: run {found.run_id}, here"
        f" {own or 'one from before runs had numbers'}. Choose another mirror with run.mirror=PATH"
        f" or another name with run.name=NAME; or move {run_folder} away to continue the run that"
        " is in the mirror."
    )


def _newest_sound(run_folder: Path) -> int:
    """Step of the newest local checkpoint that can be trusted; -1 where there is none."""
    for step in reversed(local_steps(run_folder)):
        try:
            verify(folder_of_step(run_folder, step))
        except (CheckpointError, OSError):
            continue
        return step
    return -1


class _Restore:
    """Tries at one run folder; what was wrong with each is kept in `problems`."""

    def __init__(
        self,
        mirrored: MirroredRun,
        run_folder: Path,
        recipe: Recipe,
        accept: tuple[str, ...],
        say: Say,
    ) -> None:
        self.problems: list[str] = []
        self._mirrored, self._run_folder, self._recipe, self._accept, self._say = (
            mirrored,
            run_folder,
            recipe,
            accept,
            say,
        )

    def told(self) -> str:
        return "\n".join(f"  - {problem}" for problem in self.problems)

    def tell_problems(self) -> None:
        for problem in self.problems:
            self._say(f"mirror: {problem}; not used")

    def point(self, step: int) -> bool:
        """Bring a point back with the best checkpoint it needs; whether it was sound."""
        try:
            point = self._mirrored.read(step)
            own = run_id_of(self._run_folder)
            if own not in {None, point.run_id}:
                raise NotWhole(f"it belongs to run {point.run_id}")
            name = f"{RUN_FILES}/recipe.yaml"
            self._require_same_recipe(
                f"step {step}", self._mirrored.path_of(step) / name, point.files[name]
            )
            self._tell_start(f"step {step}", point.num_bytes)
            with _Aside(self._run_folder) as aside:
                self._fetch_point(point, aside.path)
                if point.best_step is not None and point.best_step != step:
                    self._fetch_best(point.best_step, aside.path)
                self._replace(aside, f"step {step}", point.num_bytes)
        except _UNSOUND as error:
            self.problems.append(f"step {step}: {in_words(error)}")
            return False
        return True

    def finished(self) -> bool:
        """Bring the finished run back, with what of its newest checkpoints is sound; whether it
        was.
        """
        try:
            entries = self._mirrored.finished()
            if (
                "run.json" not in entries
                or "recipe.yaml" not in entries
                or not any(name.startswith("model/") for name in entries)
            ):
                self.problems.append("the finished run: its copy was cut off")
                return False
            self._require_same_recipe(
                "the finished run", self._mirrored.folder / "recipe.yaml", entries["recipe.yaml"]
            )
            num_bytes = sum(entry.num_bytes for entry in entries.values())
            self._tell_start("the finished run", num_bytes)
            with _Aside(self._run_folder) as aside:
                self._fetch(self._mirrored.folder, entries, aside.path)
                self._fetch_any_point(aside.path)
                self._replace(aside, "the finished run", num_bytes)
        except _UNSOUND as error:
            self.problems.append(f"the finished run: {in_words(error)}")
            return False
        return True

    def _tell_start(self, what: str, num_bytes: int) -> None:
        if num_bytes >= TOLD_FROM_BYTES:
            self._say(
                f"reading {what} from the mirror {self._mirrored.folder}, {format_bytes(num_bytes)}"
            )

    def _require_same_recipe(self, what: str, path: Path, entry: Entry) -> None:
        self._mirrored.files.require(path, entry)
        where = f"the run in the mirror {self._mirrored.folder} ({what})"
        stored = load_text(
            b"".join(self._mirrored.files.read(path)).decode(), f"the recipe of {where}"
        )
        refuse_other_recipe(
            where, stored, self._recipe, self._accept, otherwise="choose run.mirror=PATH"
        )

    def _fetch_point(self, point: Point, aside: Path) -> None:
        source = self._mirrored.path_of(point.step)
        of_run = {
            name.removeprefix(f"{RUN_FILES}/"): entry
            for name, entry in point.files.items()
            if name.startswith(f"{RUN_FILES}/")
        }
        self._fetch(source / RUN_FILES, of_run, aside)
        if (
            status_of(aside) == "finished"
        ):  # the point was copied when the run had ended, but is none without the model
            write_status(aside, "stopped", self._recipe)
        self._fetch_checkpoint(point, aside)

    def _fetch_checkpoint(self, point: Point, aside: Path) -> None:
        of_checkpoint = {name: entry for name, entry in point.files.items() if "/" not in name}
        target = folder_of_step(aside, point.step)
        target.mkdir(parents=True, exist_ok=True)
        self._fetch(self._mirrored.path_of(point.step), of_checkpoint, target)
        verify(target)
        fsync_folder(target)

    def _fetch_best(self, step: int, aside: Path) -> None:
        try:
            self._fetch_checkpoint(self._mirrored.read(step), aside)
        except _UNSOUND as error:
            raise NotWhole(
                f"it needs the best checkpoint, of step {step}: {in_words(error)}"
            ) from error

    def _fetch_any_point(self, aside: Path) -> None:
        """The newest sound checkpoints: a finished run may be looked into, or trained on."""
        for step in self._mirrored.steps():
            try:
                self._fetch_checkpoint(self._mirrored.read(step), aside)
            except _UNSOUND as error:
                shutil.rmtree(folder_of_step(aside, step), ignore_errors=True)
                self.problems.append(f"step {step}: {in_words(error)}")

    def _fetch(self, source: Path, entries: dict[str, Entry], target: Path) -> None:
        for name, entry in entries.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            self._mirrored.files.fetch(source / name, target / name, entry)

    def _replace(self, aside: "_Aside", what: str, num_bytes: int) -> None:
        folder = self._run_folder
        if folder.exists():
            moved = folder.with_name(f"{folder.name}.behind-{_stamp()}")
            with Lease.acquire(folder):
                pass
            is_of_use = not is_husk(folder)
            os.rename(folder, moved)
            if is_of_use:
                self._say(
                    f"the run here is older than the one in the mirror; it was moved to {moved}"
                )
            else:
                shutil.rmtree(moved, ignore_errors=True)
        aside.become(folder)
        self.tell_problems()
        self._say(
            f"brought back from the mirror {self._mirrored.folder}: {what},"
            f" {format_bytes(num_bytes)}, read whole"
        )


class _Aside:
    """A folder beside the run's, in which one process at a time puts together what becomes the run
    folder.
    """

    def __init__(self, run_folder: Path) -> None:
        self.path = run_folder.with_name(f".{run_folder.name}.restoring")

    def __enter__(self) -> "_Aside":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lease = Lease.acquire(self.path)
            for path in self.path.iterdir():
                if path.name != Lease.FILE_NAME:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise RunFolderError(
                f"{self.path.parent} cannot be written: {error}. Choose another place with"
                " run.folder=PATH."
            ) from error
        return self

    def become(self, folder: Path) -> None:
        """Commit: from now on it is that folder."""
        fsync_folder(self.path)
        self._lease.release()
        os.rename(self.path, folder)
        fsync_folder(folder.parent)

    def __exit__(self, *exception: object) -> None:
        self._lease.release()
        shutil.rmtree(self.path, ignore_errors=True)


def _stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
