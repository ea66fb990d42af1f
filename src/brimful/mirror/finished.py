"""A finished run beside its mirror: whether it is still complete here, and how lost files come
back. A damaged run never replaces a good copy.
"""

from collections.abc import Callable
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST
from brimful.base.rundir import SCHEMA_VERSION, Lease, read_json, write_json_atomically
from brimful.base.types import JsonDict, Texts
from brimful.base.units import format_bytes
from brimful.base.warning_codes import as_note
from brimful.mirror.files import Entry, IntegrityError, as_clause
from brimful.mirror.place import FINISHED
from brimful.mirror.points import JOURNAL, MirroredRun, all_files, signature
from brimful.runs.files import DATA_FILE, ENVIRONMENT_FILE, PLAN_FILE, RECIPE_FILE, STATUS_FILE

MODEL = "model/"
NOTE = ".mirrored.json"
"""File in a run folder: size and time of change of its files, here and in the mirror, when the copy
was read back.
"""
NEEDED = (STATUS_FILE, RECIPE_FILE, PLAN_FILE, DATA_FILE, ENVIRONMENT_FILE, JOURNAL)
"""Files beside the model that cannot be made again."""


class DamagedHereError(Exception):
    """The finished run on this machine is damaged; its mirror must not be changed."""


class FinishedRun:
    """A finished run in its folder, compared with its copy in the mirror.

    Args:
        mirrored: The copy.
        run_folder: The run.

    Attributes:
        listed: The files of the finished run in the mirror when this object was made. They are
            those of an earlier end if the run was trained on since.
    """

    def __init__(self, mirrored: MirroredRun, run_folder: Path) -> None:
        self._mirrored, self._run_folder = mirrored, run_folder
        self.listed = mirrored.finished_or_empty()

    def damage(self) -> Texts:
        """Return what is missing or damaged here, by name, of the files in the model's own manifest
        and of those in the mirror. Files that did not change since they were read back are not
        read again.
        """
        manifest, is_same_end = self._manifest(), self._is_same_end()
        expected: dict[str, Entry | None] = dict.fromkeys(self.listed.keys() & set(NEEDED))
        model = {name: entry for name, entry in self.listed.items() if name.startswith(MODEL)}
        if is_same_end:
            expected |= model
        elif manifest is None:
            expected |= dict.fromkeys(model)
        expected |= manifest or {}
        unchanged = self.unchanged()
        damage = {}
        for name in sorted(expected):
            entry = None if name in unchanged else expected[name]
            if (problem := self._problem(name, entry)) is not None:
                damage[name] = problem
        if is_same_end and JOURNAL in self.listed and JOURNAL not in damage:
            num_bytes = (self._run_folder / JOURNAL).stat().st_size
            if num_bytes < self.listed[JOURNAL].num_bytes:
                damage[JOURNAL] = "was cut"
        return damage

    def _problem(self, name: str, entry: Entry | None) -> str | None:
        path = self._run_folder / name
        if not path.is_file():
            return "is missing"
        if entry is not None and not self.is_local(name, entry):
            return "is damaged"
        return None

    def is_local(self, name: str, entry: Entry) -> bool:
        """Return whether the local file of this name has this size and hash."""
        path = self._run_folder / name
        if path.stat().st_size != entry.num_bytes:
            return False
        return self._mirrored.files.entry_of(path) == entry

    def _manifest(self) -> dict[str, Entry] | None:
        """Return the files in the model's manifest; None if it cannot be read."""
        try:
            files = read_json(self._run_folder / MODEL / MANIFEST)["files"]
            return {f"{MODEL}{name}": Entry.from_json(value) for name, value in files.items()}
        except (RunFolderError, OSError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def _is_same_end(self) -> bool:
        """Return whether the mirror has the end at which the run is here, so that it was not
        trained on since.
        """
        return any(
            name in self.listed
            and (self._run_folder / name).is_file()
            and self.is_local(name, self.listed[name])
            for name in (f"{MODEL}{MANIFEST}", JOURNAL)
        )

    def mend(self, say: Callable[[str], None]) -> None:
        """Bring lost files back from the mirror. Damage that cannot be mended is reported later,
        when the mirror is brought up to date.

        Raises:
            OSError: the mirror cannot be read now.
            RunFolderError: another process writes the run folder, or it cannot be written.
        """
        damage = self.damage()
        if not damage or not damage.keys() <= self.listed.keys() or not self._is_same_end():
            return
        what = describe_damage(damage)
        source = self._mirrored.folder
        try:
            with Lease.acquire(self._run_folder):
                for name in damage:
                    self._mirrored.files.fetch_replacing(
                        source / name, self._run_folder / name, self.listed[name]
                    )
        except IntegrityError as error:
            told = f"the run here is damaged ({what}), and so is the copy: {as_clause(error)}"
            say(as_note(f"mirror: {told}", "B323"))
            return
        num_bytes = sum(self.listed[name].num_bytes for name in damage)
        say(
            f"the run here was damaged ({what}); brought back from the mirror {source}:"
            f" {format_bytes(num_bytes)}, read whole"
        )

    def require_whole(self) -> None:
        """Raise DamagedHereError if the run here lost something, so that it must not be copied over
        the mirror's files.
        """
        damage = self.damage()
        if not damage:
            return
        advice = "which does not have it either"
        if damage.keys() <= self.listed.keys():
            advice = f"which has it: move {self._run_folder} away and run the same command again"
        raise DamagedHereError(
            f"the finished run in {self._run_folder} is damaged ({describe_damage(damage)})."
            " Nothing"
            f" was changed in the mirror {self._mirrored.folder}, {advice}"
        )

    def note_read_back(self) -> None:
        """Remember that the files here and in the mirror were just found equal."""
        here = {name: signature(path) for name, path in all_files(self._run_folder).items()}
        there = {name: signature(self._mirrored.folder / name) for name in (*here, FINISHED)}
        note = {
            "schema_version": SCHEMA_VERSION,
            "path": str(self._mirrored.folder),
            "here": here,
            "there": there,
        }
        write_json_atomically(self._run_folder / NOTE, note)

    def unchanged(self) -> frozenset[str]:
        """Return the files that have, here and in the mirror, the size and time of change that
        they had when they were read back. `runs --check` finds other changes.
        """
        here, there = self._noted()
        return frozenset(
            name
            for name in here
            if _has_signature(self._run_folder / name, here[name])
            and _has_signature(self._mirrored.folder / name, there.get(name))
        )

    def is_up_to_date(self) -> bool:
        """Return whether there is nothing to copy: all files here and in the mirror are those that
        were read back.
        """
        names = all_files(self._run_folder).keys()
        return names == self._noted()[0].keys() == self.unchanged()

    def _noted(self) -> tuple[JsonDict, JsonDict]:
        """Return the noted files here and in the mirror; none if the note is about another mirror,
        or about an earlier state of it.
        """
        folder = self._mirrored.folder
        try:
            noted = read_json(self._run_folder / NOTE)
            here, there = dict(noted["here"]), dict(noted["there"])
            is_current = noted["path"] == str(folder) and _has_signature(
                folder / FINISHED, there[FINISHED]
            )
        except (RunFolderError, KeyError, TypeError, ValueError):
            return {}, {}
        return (here, there) if is_current else ({}, {})


def describe_damage(damage: Texts) -> str:
    """Return a clause: `model/model.safetensors is missing, recipe.yaml is missing, and 2 more`."""
    clauses = [f"{name} {problem}" for name, problem in damage.items()]
    if len(clauses) > 2:
        clauses[2:] = [f"and {len(clauses) - 2} more"]
    return ", ".join(clauses)


def _has_signature(path: Path, noted: object) -> bool:
    try:
        return signature(path) == noted
    except OSError:
        return False
