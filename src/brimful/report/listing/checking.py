"""Checkpoints and models of a run read back whole: against their hashes, and a model against the
checkpoint it was made from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from brimful.base.errors import BrimfulError, CheckpointError
from brimful.report.live.life import CHECKPOINTS, MODEL, checkpoint_folders, json_or_none
from brimful.runs.runfiles import Json, number, section

MANIFEST = "MANIFEST.json"
EXPORTED = (MODEL, "export", "merged")
"""Where a run keeps models; the last two are what `brimful export` makes unless told otherwise."""


@dataclass(frozen=True)
class Checked:
    """One checkpoint, or the model: whether it is sound, None where nothing tells; and how that is
    known, or what is wrong.
    """

    what: str
    is_sound: bool | None
    told: str


def check_run(run_folder: Path) -> tuple[Checked, ...]:
    """Read everything back that a run keeps: every checkpoint, oldest first, what is in quarantine,
    the model, and exports of it.

    A checkpoint that a running run removes meanwhile, or its mirror, is left out.
    """
    looked_at = [(folder, _checkpoint(folder)) for folder in checkpoint_folders(run_folder)]
    checkpoints = run_folder / CHECKPOINTS
    quarantined = (
        sorted(
            entry.name for entry in checkpoints.iterdir() if entry.name.startswith("quarantine-")
        )
        if checkpoints.is_dir()
        else []
    )
    others = [
        Checked(
            f"{CHECKPOINTS}/{name}", False, "put in quarantine by a session that found it damaged"
        )
        for name in quarantined
    ]
    others += [_exported(run_folder / name) for name in EXPORTED if (run_folder / name).is_dir()]
    found = [
        checked for folder, checked in looked_at if checked.is_sound or folder.is_dir()
    ]  # asked last: removing one takes a moment
    return (*found, *others)


def _checkpoint(folder: Path) -> Checked:
    # Torch, which a list of runs does not need.
    from brimful.training.checkpoint import (  # noqa: PLC0415
        verify,
    )

    what = f"{CHECKPOINTS}/{folder.name}"
    try:
        files = {**verify(folder)["files"], **_beside(folder)}
    except (BrimfulError, OSError) as error:
        return Checked(what, False, str(error))
    return Checked(what, True, f"every SHA-256 as noted ({_count(len(files), 'file')})")


def _beside(checkpoint: Path) -> Json:
    """In a mirror: the run's files that lie with a checkpoint, read back; raises CheckpointError
    where one differs.
    """
    if not (checkpoint / "POINT.json").exists():
        return {}
    files = section(json_or_none(checkpoint / "POINT.json"), "files")
    if not files:
        raise CheckpointError("POINT.json cannot be read")
    _require(checkpoint, files)
    return files


def _require(folder: Path, files: Json) -> None:
    """Raises CheckpointError where a file is not what its entry says."""
    from brimful.training.tensorfile import sha256_of  # noqa: PLC0415 - as in _checkpoint

    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{name} is missing")
        if not isinstance(entry, dict) or sha256_of(path) != entry.get("sha256"):
            raise CheckpointError(
                f"{name} is damaged: its SHA-256 differs from the one noted when it was written"
            )


def _exported(folder: Path) -> Checked:
    """The model, or what `brimful export` wrote beside it: by its hashes where there are some, the
    model else by the checkpoint it was made from.
    """
    what = folder.name
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="numpy"):  # the size and the header agree
                pass
        files = _noted(folder)
        if files:
            _require(folder, files)
            return Checked(what, True, f"every SHA-256 as noted ({_count(len(files), 'file')})")
        return (
            _against_checkpoint(folder.parent)
            if what == MODEL
            else Checked(what, None, "its files can be read; no hashes were noted")
        )
    except (BrimfulError, OSError, SafetensorError, ValueError) as error:
        return Checked(what, False, str(error))


def _noted(folder: Path) -> Json:
    """Hashes of a folder's files, noted beside them or, in a mirror, with those of the finished
    run; empty without any.
    """
    own = section(json_or_none(folder / MANIFEST), "files")
    mirrored = section(json_or_none(folder.parent / "finished.json"), "files")
    return own or {
        name.removeprefix(f"{folder.name}/"): entry
        for name, entry in mirrored.items()
        if name.startswith(f"{folder.name}/")
    }


def _against_checkpoint(run_folder: Path) -> Checked:
    """A model without hashes: its tensors beside those of the checkpoint it was made from, as far
    as that is still there.
    """
    source, equal = _made_from(run_folder), 0
    pairs = (
        [
            (path, source / "model.safetensors")
            for path in sorted((run_folder / MODEL).glob("*.safetensors"))
        ]
        if source is not None
        else []
    )
    try:
        for pair in pairs:
            for name, is_same in _compared(*pair):
                if not is_same:
                    return Checked(
                        MODEL,
                        False,
                        f"{name} differs from {CHECKPOINTS}/{pair[1].parent.name}, from which the"
                        " model was made",
                    )
                equal += 1
    except (OSError, SafetensorError):
        if source is None or source.is_dir():
            raise
        source = None  # removed meanwhile
    if source is None or not equal:
        return Checked(
            MODEL,
            None,
            "its files can be read; there are neither hashes nor a checkpoint to compare them with",
        )
    return Checked(
        MODEL,
        True,
        f"equal to {CHECKPOINTS}/{source.name} to the last bit ({_count(equal, 'tensor')})",
    )


def _made_from(run_folder: Path) -> Path | None:
    """The best checkpoint as the newest one tells; None where it is gone."""
    folders = checkpoint_folders(run_folder)
    if not folders:
        return None
    best = number(section(json_or_none(folders[-1] / "state.json"), "progress").get("best_step"))
    wanted = folders[-1].name if best is None else f"step-{int(best):08d}"
    return next((folder for folder in folders if folder.name == wanted), None)


def _compared(model: Path, checkpoint: Path) -> Iterator[tuple[str, bool]]:
    """Names of tensors that both have (PEFT leaves the adapter's name out), and whether they are
    equal to the last bit.
    """
    import torch  # noqa: PLC0415 - as in _checkpoint

    with safe_open(model, framework="pt") as ours, safe_open(checkpoint, framework="pt") as theirs:
        # Not a mapping.
        stored = {name.replace(".default.", "."): name for name in theirs.keys()}  # noqa: SIM118
        for name in sorted(stored.keys() & set(ours.keys())):
            left, right = ours.get_tensor(name), theirs.get_tensor(stored[name])
            is_like = left.dtype == right.dtype and left.shape == right.shape
            yield (
                name,
                is_like
                and torch.equal(
                    left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8)
                ),
            )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
