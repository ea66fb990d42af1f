"""The journal of a session, cut to what the checkpoint knows from which a run goes on."""

import json
from pathlib import Path

from brimful.base.rundir import Journal, NoJournal
from brimful.training.checkpoint import Loaded
from brimful.training.world import World


def open_journal(path: Path, loaded: Loaded | None, world: World) -> Journal:
    """Return the run's journal without what is recorded again; ranks after the first write none."""
    if not world.is_first:
        return NoJournal(path)
    keep_bytes = 0
    if loaded is not None:
        keep_bytes = _kept_bytes(path, int(loaded.snapshot.state["journal_bytes"]))
    return Journal(path, keep_bytes=keep_bytes)


def _kept_bytes(journal: Path, journal_bytes: int) -> int:
    """Return how much of a journal is kept when the run continues from a checkpoint.

    Everything up to the checkpoint, and the records of the session's end after it, provided that
    no step or evaluation was recorded after the checkpoint.
    """
    if not journal.exists():
        return journal_bytes
    after = journal.read_bytes()[journal_bytes:]
    complete_lines = after[: after.rfind(b"\n") + 1]
    try:
        kinds = {json.loads(line)["kind"] for line in complete_lines.splitlines()}
    except (ValueError, KeyError, TypeError):
        return journal_bytes
    if kinds <= {"checkpoint", "loader", "event", "end"}:
        return journal_bytes + len(complete_lines)
    return journal_bytes
