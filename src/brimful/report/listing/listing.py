"""List the runs of a folder, finished or not: state, score, size, recovery points, and the command
that continues each. Nothing in the folder is changed.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from brimful.base.dotted import parse_yaml
from brimful.base.env import runs_folder
from brimful.base.errors import RunFolderError
from brimful.base.rundir import Lease, read_journal, records_lost, writer_of
from brimful.base.text import plural
from brimful.report.commands import STUDY_FILES, continue_command, is_several, name_of
from brimful.report.kinds import use_command
from brimful.report.listing.checking import CheckResult, check_run
from brimful.report.listing.score import main_score_text
from brimful.report.live.status import (
    RunStatus,
    changed_at,
    read_run_or_empty,
    recovery_points,
    status_of,
)
from brimful.report.quantities import ranks_text
from brimful.runs.bookkeeping import read_drawn_samples, read_study_record
from brimful.runs.deciding import read_recipe_text
from brimful.runs.facts import RecipeFacts
from brimful.runs.files import (
    CHECKPOINTS_FOLDER,
    JOURNAL_FILE,
    PLAN_FILE,
    RECIPE_FILE,
    SCORES_FILE,
    STATUS_FILE,
    STUDY_RECIPE,
)
from brimful.runs.folder import RunFolder, empty_run
from brimful.runs.parsing import mapping, parse
from brimful.selection.journal import is_sample

ListedKind = Literal["run", "study", "rounds", "samples"]
SIGNS = (
    RECIPE_FILE,
    STATUS_FILE,
    JOURNAL_FILE,
    PLAN_FILE,
    SCORES_FILE,
    CHECKPOINTS_FOLDER,
    Lease.FILE_NAME,
)
"""A folder with one of these is a run, or was to become one."""
SAMPLE_FILES = ("drawn.jsonl", "sampling.json")
PINS = ".mirror"
"""Second names of a checkpoint's files while they are copied; not counted again."""
DEPTH = 3
"""How many folders deep runs are looked for."""
MOVED = (
    "nothing continues it here: it was moved, and what it made names its old place; put it back"
    " there"
)
"""The problem of a study without a comparison and without a command that continues it."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One run; or a study, a chain, or one drawing of samples in a chain. The names of the fields
    are the keys of the JSON.

    Attributes:
        name: Name below the folder that was asked for, such as `study/member`.
        method: The recipe's; "" where there is none.
        state: running, finished, stopped, interrupted, not started, scored or damaged; of a study
            or chain: running, finished or unfinished.
        told: The state in a line.
        step, total_steps: Steps done and planned; of a study or chain, runs finished and planned.
            None where not known.
        score: The main score with its interval, as text; "" where there is none.
        size_bytes, checkpoint_bytes: Bytes of all files, and of those in checkpoints. A study is
            counted without its runs.
        freeable_bytes: Bytes of checkpoints of a finished run, which only training it further
            needs.
        last_active: Time at which a file in it changed last, in Unix seconds.
        points: Local and mirrored recovery points, a line each.
        ranks: How the ranks of a run on several devices got on; "" on one device.
        problems: What is missing or damaged.
        command: What continues it, or uses it; "" where there is none.
        is_member: Whether it belongs to the study or chain listed before it.
        checked: Results of verifying checkpoints and model; None where that was not asked for.
    """

    name: str
    folder: Path
    kind: ListedKind
    method: str = ""
    state: str
    told: str
    step: int | None = None
    total_steps: int | None = None
    score: str = ""
    size_bytes: int
    checkpoint_bytes: int = 0
    freeable_bytes: int = 0
    last_active: float
    points: tuple[str, ...] = ()
    ranks: str = ""
    problems: tuple[str, ...] = ()
    command: str = ""
    is_member: bool = False
    checked: tuple[CheckResult, ...] | None = None


def find_runs(folder: Path, check: bool = False) -> list[Listed]:
    """Return every run below a folder, or the run, study or chain that it is. The one that changed
    last comes first; members follow the study or chain that they belong to.

    Args:
        folder: Folder of runs; also a mirror.
        check: Whether to verify every checkpoint and model against its hashes.

    Raises:
        RunFolderError: no such folder, it cannot be read, or there are folders in it and none holds
            a run.
    """
    if not folder.exists() and folder.absolute() == runs_folder().absolute():
        return []
    _require_readable(folder)
    groups = list(_groups(folder, "", 0))
    others = [entry.name for entry in _folders(folder)]
    if not groups and others:
        names = ", ".join(others[:5]) + (" ..." if len(others) > 5 else "")
        raise RunFolderError(
            f"{folder} is not a folder of runs: none of {names} holds one. Give a folder that holds"
            " runs, or the path of a run."
        )
    groups.sort(key=lambda group: -max(entry.last_active for entry in group))
    listed = [entry for group in groups for entry in group]
    if not check:
        return listed
    return [
        replace(entry, checked=check_run(entry.folder)) if entry.kind == "run" else entry
        for entry in listed
    ]


def _require_readable(folder: Path) -> None:
    """Raise RunFolderError where a path is not a folder or cannot be read."""
    if not folder.is_dir():
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


def _groups(folder: Path, name: str, depth: int) -> Iterator[list[Listed]]:
    """Return every run as a list of its own, every study or chain with its members behind it."""
    own_name = name or folder.resolve().name
    try:
        found = _found(folder, own_name, depth)
    except OSError as error:  # one folder that cannot be read must not hide the others
        found = [_unreadable(folder, own_name, error)]
    if found:
        yield found
    elif depth < DEPTH:
        for entry in _folders(folder):
            yield from _groups(entry, f"{name}/{entry.name}" if name else entry.name, depth + 1)


def _found(folder: Path, name: str, depth: int) -> list[Listed]:
    """Return the run that a folder is, or the study or chain with its members; empty: neither."""
    if is_several(folder):
        return _study_and_members(folder, name)
    if is_run(folder) and (depth or not _holds_runs(folder)):
        return [_run(folder, name)]
    return []


def _unreadable(folder: Path, name: str, error: OSError) -> Listed:
    return Listed(
        name=name,
        folder=folder,
        kind="run",
        state="damaged",
        told=f"damaged: it cannot be read: {error.strerror}",
        size_bytes=sizes(folder)[0],
        last_active=changed_at(folder) or 0.0,
    )


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir()
        )
    except OSError:
        return []


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run, finished or not, or was to become one."""
    return any((folder / name).exists() for name in SIGNS)


def _holds_runs(folder: Path) -> bool:
    return any(is_run(entry) or is_several(entry) for entry in _folders(folder))


def _study_and_members(folder: Path, name: str) -> list[Listed]:
    """Return a study or chain, and behind it its runs and drawings of samples."""
    members = []
    for entry in _folders(folder):
        if any((entry / each).exists() for each in SAMPLE_FILES):
            members.append(_samples(entry, f"{name}/{entry.name}"))
        elif is_run(entry):
            members.append(_run(entry, f"{name}/{entry.name}"))
    study = _study(folder, name, members)
    return [study, *(replace(entry, is_member=True) for entry in members)]


def _study(folder: Path, name: str, members: Sequence[Listed]) -> Listed:
    recipe, record = read_recipe(folder / STUDY_RECIPE), read_study_record(folder)
    is_compared = record is not None and bool(record.comparison)
    command = continue_command(folder) or ""
    problems = _study_problems(
        is_readable=record is not None and bool(recipe.values),
        goes_on=is_compared or bool(command),
    )
    done = sum(entry.state == "finished" and entry.kind == "run" for entry in members)
    planned, state = planned_runs(recipe), "unfinished"
    description = finished_count(done, planned)
    if record is not None and record.left_out:
        description += f", {len(record.left_out)} left out"
    running = next((entry for entry in members if entry.state == "running"), None)
    if running is not None:
        state, command = "running", f"brimful watch {name_of(folder)}"
        description += f"; {running.name.rpartition('/')[2]} is running"
    elif is_compared:
        state, command = "finished", ""
    size, _, last_active = sizes(folder, own=True)
    return Listed(
        name=name,
        folder=folder,
        kind="study" if recipe.rft is None else "rounds",
        method=recipe.method,
        state=state,
        told=description,
        step=done,
        total_steps=planned,
        size_bytes=size,
        last_active=max([last_active, *(entry.last_active for entry in members)]),
        problems=problems,
        command=command,
    )


def _study_problems(*, is_readable: bool, goes_on: bool) -> tuple[str, ...]:
    if not is_readable:
        return (f"{' or '.join(STUDY_FILES)} is missing or cannot be read",)
    return () if goes_on else (MOVED,)


def read_recipe(path: Path) -> RecipeFacts:
    """Return what a recipe says, which need not be valid; empty where it cannot be read."""
    try:
        values = parse_yaml(read_recipe_text(path))
    except (RunFolderError, ValueError):
        values = {}
    return parse(RecipeFacts, mapping(values))


def planned_runs(recipe: RecipeFacts) -> int | None:
    """Return how many runs a study or a chain trains; None where its recipe does not say."""
    if recipe.rft is not None:
        rounds = recipe.rft.rounds
        return None if rounds is None else (rounds + 1) * max(1, len(recipe.rft.seeds))
    if recipe.study is None:
        return None
    return len(recipe.study.variants) * max(1, len(recipe.study.seeds)) or None


def _samples(folder: Path, name: str) -> Listed:
    """Return one drawing of a chain: how many samples there are and, at its end, how many are
    kept.
    """
    journal, facts_file = (folder / each for each in SAMPLE_FILES)
    facts = read_drawn_samples(facts_file)
    num_drawn = sum(map(is_sample, read_journal(journal)))
    problems = []
    if lost := records_lost(journal, facts.records if facts else 0):
        problems.append(f"{journal.name}: {plural(lost, 'record')} damaged or missing")
    if facts is None and (facts_file.exists() or (folder / "train.jsonl").exists()):
        problems.append(f"{facts_file.name} is missing or cannot be read: draw again")
    state = "finished" if facts else "interrupted"
    if writer_of(folder) is not None:
        state = "running"
    description = f"{state}: {sample_count(num_drawn)}"
    if facts is not None and facts.statistics.kept is not None:
        description += f", {facts.statistics.kept:,.0f} kept"
    size, _, last_active = sizes(folder)
    return Listed(
        name=name,
        folder=folder,
        kind="samples",
        state=state,
        told=description,
        size_bytes=size,
        last_active=last_active,
        problems=tuple(problems),
    )


def finished_count(done: int, planned: int | None) -> str:
    """Return `2 of 30 runs finished`; `1 run finished` where their number is not known."""
    if planned:
        return f"{done} of {planned} runs finished"
    return f"{plural(done, 'run')} finished"


def sample_count(count: int) -> str:
    """Return `1,234 samples drawn`."""
    return f"{plural(max(0, count), 'sample')} drawn"


def _run(folder: Path, name: str) -> Listed:
    # Values of any kind stand in files, and one odd folder must not hide the others.
    try:
        run = read_run_or_empty(folder)
        status, score = status_of(run), main_score_text(run)
        command = _command(run, status)
    except Exception as error:
        run, score, command = empty_run(folder), "", ""
        reason = f"its files cannot be understood ({type(error).__name__}: {error})"
        status = RunStatus("damaged", f"damaged: {reason}")
    size, checkpoint_bytes, last_active = sizes(folder)
    points = recovery_points(folder)
    is_finished = status.status == "finished"
    shows_points = not is_finished or points.mirror is not None
    return Listed(
        name=name,
        folder=folder,
        kind="run",
        method=run.recipe.method,
        state=status.status,
        told=status.description,
        step=run.last_step if run.records else None,
        total_steps=run.total_steps,
        score=score,
        size_bytes=size,
        checkpoint_bytes=checkpoint_bytes,
        freeable_bytes=checkpoint_bytes if is_finished and not status.is_mirrored else 0,
        last_active=last_active,
        points=tuple(points.lines(time.time())) if shows_points else (),
        ranks="" if run.ranks is None else f"{len(run.ranks.ranks)} ranks: {ranks_text(run.ranks)}",
        problems=status.problems,
        command=command,
    )


def _command(run: RunFolder, status: RunStatus) -> str:
    """Return the next command for a run, "" where there is none."""
    match status.status:
        case "scored" | "damaged":
            return ""
        case "running":
            return f"brimful watch {name_of(run.folder)}"
        case "finished" if not status.is_mirrored:
            return use_command(run)
    command = continue_command(
        run.folder, command=run.environment.command, is_mirrored=status.is_mirrored
    )
    return command or ""


def sizes(folder: Path, *, own: bool = False) -> tuple[int, int, float]:
    """Return the bytes of all files and of those in checkpoints, and when one changed last (Unix
    seconds).

    Files that vanish meanwhile are not counted, and links not followed.

    Args:
        own: Count only files that lie directly in the folder.
    """
    folder_changed = changed_at(folder) or 0.0
    total_bytes = checkpoint_bytes = 0
    last_changed = folder_changed if own else 0.0
    for path, is_checkpoint in _files(folder, own):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        total_bytes += status.st_size
        checkpoint_bytes += status.st_size * is_checkpoint
        last_changed = max(last_changed, status.st_mtime)
    return total_bytes, checkpoint_bytes, last_changed or folder_changed


def _files(folder: Path, own: bool) -> Iterator[tuple[str, bool]]:
    for place, folders, names in os.walk(folder):
        is_checkpoint = CHECKPOINTS_FOLDER in Path(place).relative_to(folder).parts[:1]
        yield from ((os.path.join(place, name), is_checkpoint) for name in names)
        folders[:] = [] if own else [name for name in folders if name != PINS]


def freeable(listed: Sequence[Listed]) -> tuple[int, int]:
    """Return the bytes in checkpoints of finished runs, and how many runs those are."""
    sizes_bytes = [entry.freeable_bytes for entry in listed if entry.freeable_bytes]
    return sum(sizes_bytes), len(sizes_bytes)
