"""What runs a folder holds, finished or not: state, score, size, recovery points, and how to go on.
Nothing in it is changed.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from brimful.base.dotted import parse_yaml
from brimful.base.env import runs_folder
from brimful.base.errors import RunFolderError
from brimful.base.rundir import Lease, read_journal, writer_of
from brimful.report.commands import (
    STUDY_FILES,
    STUDY_RECIPE,
    continue_command,
    is_several,
    name_of,
    use_command,
)
from brimful.report.listing.checking import Checked, check_run
from brimful.report.listing.score import score_told
from brimful.report.live.life import (
    CHECKPOINTS,
    Life,
    json_or_none,
    life_of,
    points_of,
    read_leniently,
)
from brimful.runs.runfiles import Json, RunFiles, items, number, section

Kind = Literal["run", "study", "rounds", "samples"]
SIGNS = ("recipe.yaml", "run.json", "metrics.jsonl", "plan.json", CHECKPOINTS, Lease.FILE_NAME)
"""A folder with one of these is a run, or was to become one."""
SAMPLE_FILES = ("drawn.jsonl", "sampling.json")
PINS = ".mirror"
"""Second names of a checkpoint's files while they are copied; not counted again."""
DEPTH = 3
"""Folders of folders of runs are looked into so deep."""


@dataclass(frozen=True)
class Listed:
    """One run; or a study, a chain, or one drawing of samples in a chain.

    Attributes:
        name: Below the folder that was asked for, such as `study/member`.
        method: The recipe's; "" where there is none.
        state: In a word: running, finished, stopped, interrupted, not started, scored, damaged; of
            a study or chain: running, finished, unfinished.
        told: The same for people, in a line.
        step, total_steps: How far it is; of a study or chain, runs that are finished and runs there
            are to be. None where not known.
        score: The main one with its interval, as text; "" where there is none.
        size_bytes, checkpoint_bytes: On disk, in all and of that in checkpoints. A study's own:
            without its runs.
        freeable_bytes: Checkpoints of a finished run, which only training it further needs.
        last_active: When a file in it changed last, in Unix seconds.
        points: Local and mirrored recovery points, a line each.
        problems: What is missing or damaged.
        command: What goes on with it, or uses it; "" where there is nothing to type.
        is_member: Whether it belongs to the study or chain listed before it.
        checked: What reading checkpoints and model back found; None where that was not asked for.
    """

    name: str
    folder: Path
    kind: Kind
    method: str
    state: str
    told: str
    step: int | None
    total_steps: int | None
    score: str
    size_bytes: int
    checkpoint_bytes: int
    freeable_bytes: int
    last_active: float
    points: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    command: str = ""
    is_member: bool = False
    checked: tuple[Checked, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field as JSON values; `checked` only where it was asked for."""
        values = asdict(self) | {"folder": str(self.folder)}
        return {
            name: value for name, value in values.items() if name != "checked" or value is not None
        }


def find_runs(folder: Path, check: bool = False) -> list[Listed]:
    """Every run below a folder, or the run, study or chain that it is; what changed last comes
    first, members under what they belong to.

    Args:
        folder: Of runs; a mirror, too.
        check: Read every checkpoint and model back against its hashes.

    Raises:
        RunFolderError: no such folder, it cannot be read, or there are folders in it and none holds
            a run.
    """
    if not folder.is_dir():
        if not folder.exists() and folder.absolute() == runs_folder().absolute():
            return []
        what = "is a file" if folder.exists() else "does not exist"
        raise RunFolderError(
            f"{folder} {what}. Give a folder that holds runs, such as runs, or the mirror of one."
        )
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be read: {error}. Fix its permissions, or mount it again."
        ) from error
    found = list(_groups(folder, "", 0))
    if not found and (others := [entry.name for entry in _folders(folder)]):
        told = ", ".join(others[:5]) + (" ..." if len(others) > 5 else "")
        raise RunFolderError(
            f"{folder} is not a folder of runs: none of {told} holds one. Give a folder that holds"
            " runs, or the path of a run."
        )
    found.sort(key=lambda group: -max(entry.last_active for entry in group))
    listed = [entry for group in found for entry in group]
    return [
        replace(entry, checked=check_run(entry.folder)) if check and entry.kind == "run" else entry
        for entry in listed
    ]


def _groups(folder: Path, name: str, depth: int) -> Iterator[list[Listed]]:
    """Every run as a list of its own, every study or chain with its members behind it."""
    if is_several(folder):
        yield _several(folder, name or folder.resolve().name)
    elif is_run(folder) and (
        depth or not any(is_run(entry) or is_several(entry) for entry in _folders(folder))
    ):
        yield [_run(folder, name or folder.resolve().name)]
    elif depth < DEPTH:
        for entry in _folders(folder):
            yield from _groups(entry, f"{name}/{entry.name}" if name else entry.name, depth + 1)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir()
        )
    except OSError:
        return []


def is_run(folder: Path) -> bool:
    """Whether a folder is a run, finished or not, or was to become one."""
    return any((folder / name).exists() for name in SIGNS)


def _several(folder: Path, name: str) -> list[Listed]:
    """A study or chain, and below it its runs and drawings."""
    members = []
    for entry in _folders(folder):
        if any((entry / each).exists() for each in SAMPLE_FILES):
            members.append(_samples(entry, f"{name}/{entry.name}"))
        elif is_run(entry):
            members.append(_run(entry, f"{name}/{entry.name}"))
    recipe = read_recipe(folder / STUDY_RECIPE)
    planned, done = (
        planned_runs(recipe),
        sum(entry.state == "finished" and entry.kind == "run" for entry in members),
    )
    facts = json_or_none(folder / "study.json")
    running = next((entry for entry in members if entry.state == "running"), None)
    is_compared = facts is not None and bool(section(facts, "comparison"))
    state = "running" if running else "finished" if is_compared else "unfinished"
    left_out = len(section(facts, "left_out"))
    told = finished_told(done, planned)
    told += f", {left_out} left out" if left_out else ""
    told += f"; {running.name.rpartition('/')[2]} is running" if running else ""
    problems = (
        ()
        if recipe and facts is not None
        else (f"{' or '.join(STUDY_FILES)} is missing or cannot be read",)
    )
    size, _, last_active = sizes(folder, own=True)
    goes_on = continue_command(folder)
    if not is_compared and goes_on is None and not problems:
        problems = (
            (
                "nothing continues it here: it was moved, and what it made names its old place; put"
                " it back there"
            ),
        )
    command = (
        f"brimful watch {name_of(folder)}" if running else "" if is_compared else goes_on or ""
    )
    study = Listed(
        name,
        folder,
        "rounds" if recipe.get("rft") else "study",
        str(recipe.get("method", "")),
        state,
        told,
        done,
        planned,
        "",
        size,
        0,
        0,
        max([last_active, *(entry.last_active for entry in members)]),
        (),
        problems,
        command,
    )
    return [study, *(replace(entry, is_member=True) for entry in members)]


def read_recipe(path: Path) -> Json:
    """The values of a recipe as they stand in a file, without its rules; empty where it cannot be
    read.
    """
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def planned_runs(recipe: Json) -> int | None:
    """How many runs a study or a chain is to train; None where its recipe does not tell."""
    study, rft = section(recipe, "study"), section(recipe, "rft")
    if rft:
        rounds = number(rft.get("rounds"))
        return None if rounds is None else (int(rounds) + 1) * max(1, len(items(rft.get("seeds"))))
    return len(section(study, "variants")) * max(1, len(items(study.get("seeds")))) or None


def _samples(folder: Path, name: str) -> Listed:
    """One drawing of a chain: how many samples there are and, at its end, how many are kept."""
    facts, writer = json_or_none(folder / "sampling.json"), writer_of(folder)
    drawn = sum(1 for _ in read_journal(folder / "drawn.jsonl")) - 1
    state = (
        "running" if writer is not None and writer[1] else "finished" if facts else "interrupted"
    )
    kept = number(section(section(facts, "statistics"), "fates").get("kept"))
    told = f"{state}: {samples_told(drawn)}" + (f", {kept:,.0f} kept" if kept is not None else "")
    size, _, last_active = sizes(folder)
    return Listed(name, folder, "samples", "", state, told, None, None, "", size, 0, 0, last_active)


def finished_told(done: int, planned: int | None) -> str:
    """`2 of 30 runs finished`; `1 run finished` where nothing tells how many there are to be."""
    return (
        f"{done} of {planned} runs finished"
        if planned
        else f"{done} run{'s' * (done != 1)} finished"
    )


def samples_told(count: int) -> str:
    """`1,234 samples drawn`."""
    return f"{max(0, count):,} sample{'s' * (count != 1)} drawn"


def _run(folder: Path, name: str) -> Listed:
    try:
        run = read_leniently(folder)
        life, score, command = life_of(run), score_told(run), ""
        command = _command(run, life)
    except (
        Exception
    ) as error:  # values of any kind stand in files; one odd folder must not hide the others
        run, score, command = RunFiles(folder, "", {}, {}, {}, {}, {}, (), (), {}), "", ""
        life = Life(
            "damaged", f"damaged: its files cannot be understood ({type(error).__name__}: {error})"
        )
    size, checkpoint_bytes, last_active = sizes(folder)
    points = points_of(folder)
    is_finished = life.word == "finished"
    shown = points.told(time.time()) if not is_finished or points.mirror is not None else []
    return Listed(
        name,
        folder,
        "run",
        str(run.recipe.get("method", "")),
        life.word,
        life.told,
        run.last_step if run.records else None,
        run.total_steps,
        score,
        size,
        checkpoint_bytes,
        checkpoint_bytes if is_finished and not life.is_mirrored else 0,
        last_active,
        tuple(shown),
        life.problems,
        command,
    )


def _command(run: RunFiles, life: Life) -> str:
    """What to type next for a run."""
    if life.word in {"scored", "damaged"}:
        return ""
    if life.word == "running":
        return f"brimful watch {name_of(run.folder)}"
    if life.word == "finished" and not life.is_mirrored:
        return use_command(run)
    return (
        continue_command(
            run.folder,
            command=str(run.environment.get("command", "")),
            is_mirrored=life.is_mirrored,
        )
        or ""
    )


def sizes(folder: Path, *, own: bool = False) -> tuple[int, int, float]:
    """Bytes of all files and of those in checkpoints, and when one changed last (Unix seconds);
    `own`: only files that lie in it directly.

    Files that vanish meanwhile are not counted, and links not followed.
    """
    total = in_checkpoints = 0
    try:
        last = folder.stat().st_mtime if own else 0.0
    except OSError:
        last = 0.0
    for path, is_checkpoint in _files(folder, own):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        total += status.st_size
        in_checkpoints += status.st_size if is_checkpoint else 0
        last = max(last, status.st_mtime)
    return total, in_checkpoints, last or _changed(folder)


def _files(folder: Path, own: bool) -> Iterator[tuple[str, bool]]:
    for place, folders, names in os.walk(folder):
        is_checkpoint = CHECKPOINTS in Path(place).relative_to(folder).parts[:1]
        yield from ((os.path.join(place, name), is_checkpoint) for name in names)
        folders[:] = [] if own else [name for name in folders if name != PINS]


def _changed(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def freeable(listed: Sequence[Listed]) -> tuple[int, int]:
    """Bytes in checkpoints of finished runs, and how many runs those are."""
    found = [entry.freeable_bytes for entry in listed if entry.freeable_bytes]
    return sum(found), len(found)
