"""A run of each kind, and the same run killed after its first checkpoint and continued: both must
end with the same weights, and the model must be of use.
"""

import hashlib
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.base.rundir import read_journal
from brimful.prove.material import LABELLED_FILE
from brimful.prove.record import HELD, Outcome
from brimful.prove.workplace import TrialFailed, Workplace
from brimful.runs.files import JOURNAL_FILE, MODEL_FOLDER

LOOK_EVERY_S = 0.02


def survives(place: Workplace, name: str, recipe: Mapping[str, Any]) -> Outcome:
    """Train and evaluate a recipe twice, the second time with a SIGKILL in the middle; export and
    use the model.

    Raises:
        TrialFailed: a command failed, or the runs end with other weights.
    """
    place.run_recipe(name, recipe, "run")
    killed = place.write_recipe(f"{name}-killed", recipe)
    killed_at = _kill_after_a_checkpoint(place, name, killed)
    place.call(name, "run", str(killed))
    same = _weights(place.runs / name) == _weights(place.runs / f"{name}-killed")
    if not same:
        raise TrialFailed("the run that was killed and continued ended with other weights")
    place.call(name, "export", name, "--to", str(place.exported(name).relative_to(place.folder)))
    _use(place, name)
    run = place.run_of(name)
    return Outcome(
        status=HELD,
        what=(
            f"killed after step {killed_at} of {run.last_step} and continued: the same weights, bit"
            " for bit; evaluated, exported and used"
        ),
        facts={"steps": run.last_step, "killed_after_step": killed_at},
    )


def _kill_after_a_checkpoint(place: Workplace, name: str, recipe: Path) -> int:
    """Start a run and kill it at a step after its first checkpoint; return that step."""
    journal = place.runs / f"{name}-killed" / JOURNAL_FILE
    with place.start(name, "train", str(recipe)) as process:
        give_up_at = time.monotonic() + place.longest_s
        while process.poll() is None and time.monotonic() < give_up_at:
            step = _step_after_checkpoint(journal)
            if step is not None:
                process.send_signal(signal.SIGKILL)
                return step
            time.sleep(LOOK_EVERY_S)
        _end(process)
    raise TrialFailed("the run that was to be killed ended before its second checkpoint")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()


def _step_after_checkpoint(journal: Path) -> int | None:
    """Return the newest recorded step, or None while no checkpoint was written before it."""
    if not journal.exists():
        return None
    saved = step = None
    for record in read_journal(journal):
        if record["kind"] == "checkpoint":
            saved = record["step"]
        if record["kind"] == "step" and saved is not None:
            step = record["step"]
    return step if saved is not None and step is not None and step > saved else None


def _weights(run: Path) -> dict[str, str]:
    """Return the hash of every file of weights of a finished run."""
    files = sorted((run / MODEL_FOLDER).rglob("*.safetensors"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _use(place: Workplace, name: str) -> None:
    """Ask the model for what its kind of run is for."""
    run = place.run_of(name)
    if run.kind.gives_labels:
        place.call(name, "predict", name, LABELLED_FILE)
    elif run.kind.writes_text:
        place.call(name, "generate", name, "--prompt", "The ", "--tokens", "16")
