"""Checkpoint folders of transformers' Trainer (`checkpoint-500`) as the start of a run."""

from pathlib import Path

from brimful.base.strict_json import load_json

STATE = "trainer_state.json"
PICKLED = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "training_args.bin")
"""Files of a checkpoint that are pickled, and the random states (`rng_state*.pth`)."""


def what_is_left_out(folder: Path) -> str:
    """Return, for a checkpoint of a Trainer, what a run that starts from it takes and what it
    cannot; empty for another folder.
    """
    if not (folder / STATE).is_file():
        return ""
    step = _step(folder / STATE)
    at = "" if step is None else f" at its step {step:,}"
    pickled = [name for name in PICKLED if (folder / name).exists()]
    pickled += sorted(path.name for path in folder.glob("rng_state*.pth"))
    left_out = ""
    if pickled:
        left_out = (
            f" {', '.join(pickled)}: not read, since pickle files can run code when they are"
            " opened."
        )
    return (
        f"{folder} is a checkpoint of a Trainer{at}. Its weights are the start of this run;"
        f" optimizer states, schedule and order of the data begin anew.{left_out}"
    )


def _step(path: Path) -> int | None:
    try:
        step = load_json(path.read_bytes())["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
