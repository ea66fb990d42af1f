"""Save results from a machine that will be taken away: a mounted drive, a zip file, the hub."""

import importlib
import os
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.text import reason_of
from brimful.base.time_limit import hub_limits
from brimful.base.units import format_bytes
from brimful.notebook.cell import require_notebook, show
from brimful.notebook.follow import folder_named
from brimful.notebook.job import run_command
from brimful.runs.files import CHECKPOINTS_FOLDER, MODEL_FOLDER

DRIVE = Path("/content/drive")
LEFT_OUT = frozenset({CHECKPOINTS_FOLDER, "tensorboard", "wandb", "writer.lock"})
"""What only matters while a run goes on."""
COPIES = frozenset({"export", "merged"})
"""Folders that hold a run's model once more."""
PACKED = frozenset({".safetensors", ".png", ".gz", ".parquet"})
"""Files that compressing does not make smaller."""


def drive(folder: str = "brimful") -> Path | None:
    """Mount Google Drive, which only the notebook's own process can, and return a folder in it;
    None outside Colab.

    Raises:
        RequestError: it could not be mounted, for example because the question was declined.
    """
    require_notebook()
    try:
        colab = importlib.import_module("google.colab.drive")
    except ImportError:
        return None
    try:
        colab.mount(str(DRIVE))
    except Exception as error:
        raise RequestError(
            f"Google Drive could not be mounted: {error}. Run the cell again and allow it, or go on"
            " without: mirror=None."
        ) from error
    place = DRIVE / "MyDrive" / folder
    place.mkdir(parents=True, exist_ok=True)
    return place


def download(run: str | Path) -> Path:
    """Zip a run without its checkpoints (model, report, scores, samples, records) and offer the
    file: Colab sends it, elsewhere a link.

    Returns:
        The file, beside the run's folder.

    Raises:
        RunFolderError: there is no such run, or no room for the file.
    """
    require_notebook()
    path = packed(folder_named(run))
    try:
        importlib.import_module("google.colab.files").download(str(path))
    except ImportError:
        link = Path(os.path.relpath(path)).as_posix()
        show(
            f'<a href="{escape(link)}" download>{escape(path.name)}</a>'
            f" ({format_bytes(path.stat().st_size)})",
            f"{path} ({format_bytes(path.stat().st_size)})",
        )
    return path


def packed(folder: Path) -> Path:
    """The zip file of a run's folder, whole or not there.

    Raises:
        RunFolderError: it cannot be written.
    """
    path = folder.with_name(f"{folder.name}.zip")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in _files(folder):
                method = zipfile.ZIP_STORED if file.suffix in PACKED else zipfile.ZIP_DEFLATED
                # A run that goes on replaces files.
                with suppress(FileNotFoundError):
                    archive.write(file, Path(folder.name) / file.relative_to(folder), method)
        os.replace(temporary, path)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error}. Free space and run the cell again."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder of one run or several, in order: no links, which may lead out of
    it, no pipes, and nothing that is removed meanwhile.
    """
    for place, folders, files in os.walk(folder):
        left_out = LEFT_OUT | COPIES if MODEL_FOLDER in folders else LEFT_OUT
        folders[:] = sorted(set(folders) - left_out)
        paths = (Path(place) / name for name in sorted(set(files) - left_out))
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def push(run: str | Path, repo_id: str, *, private: bool = True) -> str:
    """Send a finished run's model to the Hugging Face hub, and nothing else of the run; into a
    private repository unless told otherwise.

    Args:
        run: A run's name or folder.
        repo_id: `you/name`; it is made where it is not there.
        private: Only you can see it.

    Returns:
        Its address.

    Raises:
        RequestError: no such account or no token for it; CommandFailed: the run is not finished.
    """
    require_notebook()
    folder = folder_named(run)
    if repo_id.count("/") != 1:
        raise RequestError(
            f"push to {repo_id!r}: write your account and a name, as in you/{folder.name}."
        )
    exported = folder / "export"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as aside:
        if not exported.is_dir():
            run_command(["export", str(folder)])
        elif _last_written(folder / MODEL_FOLDER) > _last_written(exported):
            exported = Path(aside) / exported.name
            run_command(["export", str(folder), "--to", str(exported)])
        address = send(exported, repo_id, private=private)
    shown = escape(address)
    show(f'<a href="{shown}">{shown}</a>', address)
    return address


def _last_written(folder: Path) -> int:
    return max(
        (path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.exists()),
        default=0,
    )


def send(folder: Path, repo_id: str, *, private: bool) -> str:
    """Upload a folder to a model repository; returns its address.

    Raises:
        RequestError: the hub refused, or cannot be reached; with the way out.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - only for this

    api: Any = HfApi()
    try:
        with hub_limits(sum(path.stat().st_size for path in folder.rglob("*"))):
            address = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message="Trained with brimful"
            )
    except Exception as error:  # the library's network and parsing layers raise any class
        reason = reason_of(error)
        raise RequestError(
            f"the hub did not take {repo_id}: {reason}. Log in with a token that may write: from"
            " huggingface_hub import login; login()"
        ) from error
    return str(address)
