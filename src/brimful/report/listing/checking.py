"""Verify the checkpoints and models of a run: against their hashes, and a model against the
checkpoint it was made from.
"""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from brimful.base.errors import BrimfulError, CheckpointError
from brimful.base.manifest import MANIFEST, problem_of_file, require_sound
from brimful.base.rundir import read_json
from brimful.base.text import plural
from brimful.base.types import Json
from brimful.report.live.status import checkpoint_folders
from brimful.runs.bookkeeping import best_step_of, hashes_in
from brimful.runs.files import CHECKPOINTS_FOLDER, MODEL_FOLDER
from brimful.runs.parsing import mapping

EXPORTED = (MODEL_FOLDER, "export", "merged")
"""Where a run keeps models; the last two are what `brimful export` makes unless told otherwise."""


@dataclass(frozen=True)
class CheckResult:
    """The result of reading back one checkpoint or the model.

    Attributes:
        is_sound: None where there is nothing to compare it with.
        told: How that is known, or what is wrong.
    """

    what: str
    is_sound: bool | None
    told: str


def check_run(run_folder: Path) -> tuple[CheckResult, ...]:
    """Verify everything that a run keeps: every checkpoint, oldest first, those in quarantine, the
    model, and exports of it.

    A checkpoint that a running run or its mirror removes meanwhile is left out.
    """
    try:
        return _checked(run_folder)
    except OSError as error:
        reason = f"{error.filename or run_folder} cannot be read: {error.strerror}"
        return (CheckResult(run_folder.name, None, reason),)


def _checked(run_folder: Path) -> tuple[CheckResult, ...]:
    looked_at = [(folder, _checkpoint(folder)) for folder in checkpoint_folders(run_folder)]
    checkpoints = run_folder / CHECKPOINTS_FOLDER
    entries = sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []
    reason = "put in quarantine by a session that found it damaged"
    others = [
        CheckResult(f"{CHECKPOINTS_FOLDER}/{entry.name}", False, reason)
        for entry in entries
        if entry.name.startswith("quarantine-")
    ]
    others += [_exported(run_folder / name) for name in EXPORTED if (run_folder / name).is_dir()]
    # Whether it is still there is looked up last: removing one takes a moment.
    present = [result for folder, result in looked_at if result.is_sound or folder.is_dir()]
    return (*present, *others)


def _checkpoint(folder: Path) -> CheckResult:
    # Torch, which a list of runs does not need.
    from brimful.training.checkpoint import (  # noqa: PLC0415
        verify,
    )

    what = f"{CHECKPOINTS_FOLDER}/{folder.name}"
    try:
        files = {**verify(folder)["files"], **_beside(folder)}
    except (BrimfulError, OSError) as error:
        return CheckResult(what, False, str(error))
    return CheckResult(what, True, f"every SHA-256 as noted ({plural(len(files), 'file')})")


def _beside(checkpoint: Path) -> Json:
    """Return the run's files that lie with a checkpoint in a mirror.

    Raises:
        CheckpointError: one of them differs from its hash.
    """
    if not (checkpoint / "POINT.json").exists():
        return {}
    files = hashes_in(checkpoint / "POINT.json")
    if not files:
        raise CheckpointError("POINT.json cannot be read")
    _require(checkpoint, files)
    return files


def _require(folder: Path, files: Json) -> None:
    """Raise CheckpointError if a file is missing or differs from its hash."""
    for name, entry in files.items():
        if problem := problem_of_file(folder, name, entry):
            raise CheckpointError(problem)


def _exported(folder: Path) -> CheckResult:
    """Verify the model, or what `brimful export` wrote beside it, against its hashes; a model
    without hashes against the checkpoint it was made from.
    """
    what = folder.name
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="numpy"):  # the size and the header agree
                pass
        files = _noted(folder)
        _require(folder, files)
        require_sound(folder)
        if files:
            return CheckResult(what, True, f"every SHA-256 as noted ({plural(len(files), 'file')})")
        return (
            _against_checkpoint(folder.parent)
            if what == MODEL_FOLDER
            else CheckResult(what, None, "its files can be read; no hashes were noted")
        )
    except (BrimfulError, OSError, SafetensorError, ValueError) as error:
        return CheckResult(what, False, str(error))


def _noted(folder: Path) -> Json:
    """Return the hashes of a folder's files, which lie beside them or, in a mirror, with those of
    the finished run; empty without any.

    Raises:
        RunFolderError: the manifest differs from its own checksum, or is no JSON.
    """
    own: Json = {}
    if (folder / MANIFEST).is_file():
        own = mapping(read_json(folder / MANIFEST).get("files"))
    mirrored = hashes_in(folder.parent / "finished.json")
    return own or {
        name.removeprefix(f"{folder.name}/"): entry
        for name, entry in mirrored.items()
        if name.startswith(f"{folder.name}/")
    }


def _against_checkpoint(run_folder: Path) -> CheckResult:
    """Compare the tensors of a model without hashes with those of the checkpoint it was made from,
    where that is still there.
    """
    source = _made_from(run_folder)
    unknown = CheckResult(
        MODEL_FOLDER,
        None,
        "its files can be read; there are neither hashes nor a checkpoint to compare them with",
    )
    if source is None:
        return unknown
    from brimful.training.checkpoint import weights_of  # noqa: PLC0415 - as in _checkpoint
    from brimful.training.tensorfile import compare_model  # noqa: PLC0415 - as in _checkpoint

    try:
        differing, num_equal = compare_model(run_folder / MODEL_FOLDER, weights_of(source))
    except (OSError, SafetensorError):
        if source.is_dir():
            raise
        # The checkpoint was removed meanwhile.
        return unknown
    origin = f"{CHECKPOINTS_FOLDER}/{source.name}"
    if differing:
        description = f"{differing} differs from {origin}, from which the model was made"
        return CheckResult(MODEL_FOLDER, False, description)
    if not num_equal:
        return unknown
    tensors = plural(num_equal, "tensor")
    return CheckResult(MODEL_FOLDER, True, f"equal to {origin} to the last bit ({tensors})")


def _made_from(run_folder: Path) -> Path | None:
    """Return the best checkpoint, which the newest one names; None where it was removed."""
    folders = checkpoint_folders(run_folder)
    if not folders:
        return None
    best_step = best_step_of(folders[-1])
    name = folders[-1].name if best_step is None else f"step-{best_step:08d}"
    return next((folder for folder in folders if folder.name == name), None)
