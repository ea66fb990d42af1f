"""Bring files of a run folder that decide its answers back from its checkpoints."""

import json
from pathlib import Path

from brimful.base.errors import CheckpointError, RunFolderError
from brimful.base.rundir import SCHEMA_VERSION, Lease, write_text_atomically
from brimful.runs.deciding import DECIDING_FILES, problem_of
from brimful.runs.files import CHECKPOINTS_FOLDER, MODEL_FOLDER, STATUS_FILE
from brimful.training.checkpoint import CheckpointStore, stored_files

_STOPPED = json.dumps({"schema_version": SCHEMA_VERSION, "status": "stopped"}) + "\n"


def mend(run_folder: Path) -> list[str]:
    """Write damaged or missing files of `DECIDING_FILES` again, as the newest sound checkpoint that
    holds them has them; return what was done, in sentences.

    Raises:
        RunFolderError: no checkpoint holds one that is damaged, or that a finished run lacks; or
            another process writes the folder.
    """
    every = {name: problem_of(run_folder / name) for name in DECIDING_FILES}
    problems = {name: problem for name, problem in every.items() if problem}
    if not problems or not _is_run(run_folder):
        return []
    copies = _copies(run_folder)
    for name in problems.keys() - copies.keys():
        if (run_folder / name).exists() or (run_folder / MODEL_FOLDER).exists():
            raise RunFolderError(
                f"{problems[name]}.\nNo checkpoint of this run holds a copy of {name}. Put a copy"
                f" back, or train again under another name: run.name={run_folder.name}-2"
            )
    mended = sorted(problems.keys() & copies.keys())
    with Lease.acquire(run_folder):
        for name in mended:
            write_text_atomically(run_folder / name, copies[name][1])
    return [
        f"{problems[name]}; it was brought back from the checkpoint of step {copies[name][0]}"
        for name in mended
    ]


def _is_run(run_folder: Path) -> bool:
    return any((run_folder / name).exists() for name in (*DECIDING_FILES, CHECKPOINTS_FOLDER))


def _copies(run_folder: Path) -> dict[str, tuple[int, str]]:
    """Return by name the step of the newest sound checkpoint that holds a file, and its text."""
    store = CheckpointStore(run_folder / CHECKPOINTS_FOLDER, keep=1)
    copies: dict[str, tuple[int, str]] = {}
    for step in store.steps():
        try:
            files = stored_files(store.path_of(step))
        except (CheckpointError, RunFolderError):
            continue
        # A checkpoint of an earlier version holds no copies; how its run stands is known all the
        # same: it can go on from there.
        copies |= {STATUS_FILE: (step, _STOPPED)}
        copies |= {name: (step, text) for name, text in files.items() if name in DECIDING_FILES}
    return copies
