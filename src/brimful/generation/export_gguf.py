"""A run's model as one GGUF file, for llama.cpp and what is built on it."""

import hashlib
import os
import shutil
import uuid
from pathlib import Path

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.manifest import MANIFEST, sha256_of
from brimful.base.rundir import fsync_folder
from brimful.base.units import format_bytes
from brimful.generation.export import Exported, MergeCheck, export_merged, export_run
from brimful.generation.load import base_of, recipe_of, trained_folder
from brimful.hardware.host import disk_free_bytes
from brimful.model.catalog import config_of_model
from brimful.model.gguf_file import SUFFIX
from brimful.model.gguf_writing import (
    BITS_PER_WEIGHT,
    GgufType,
    origin_in,
    refuse_unwritable,
    write_gguf,
)
from brimful.model.published import is_adapter_folder
from brimful.runs.files import MODEL_FOLDER

COPIES = 2.5
"""Disk that is needed while writing, as a multiple of the model's files: they are copied or merged
first, and the GGUF file comes beside them."""


def export_gguf(run_folder: Path, kind: GgufType, to: Path | None = None) -> Exported:
    """Write a finished run's model into a GGUF file; adapters are merged into their base in fp32
    first. A file that holds this run already is left as it is.

    Args:
        kind: Type of the matrices.
        to: The new file. Default: `NAME-TYPE.gguf` in the run's folder.

    Raises:
        RunFolderError: the run is not finished, its base changed, or the file cannot be written.
        RequestError: the file exists, or the model cannot be written as GGUF.
        PlanError: base or adapters cannot be loaded.
    """
    path = to or run_folder / f"{run_folder.name}-{kind}{SUFFIX}"
    trained = trained_folder(run_folder)
    is_adapted = is_adapter_folder(trained)
    _refuse(run_folder, path)
    origin = _origin(run_folder, kind)
    if path.exists() and origin and origin_in(path) == origin:
        contents = "this run as GGUF, by its hashes"
        return Exported(path, path.stat().st_size, contents, is_older=True)
    if path.exists():
        raise RequestError(f"{path} exists. Delete it, or use --to FILE.gguf.")
    refuse_unwritable(config_of_model(base_of(run_folder) if is_adapted else str(trained)), kind)
    need = COPIES * sum(each.stat().st_size for each in trained.iterdir())
    if (free := disk_free_bytes(path)) < need:
        raise RunFolderError(
            f"{path} needs about {format_bytes(need)} while it is made, only {format_bytes(free)}"
            " are free there. Free some, or use --to FILE.gguf."
        )
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        aside.mkdir(parents=True)
        check = _whole_model(run_folder, aside / "model", is_adapted=is_adapted)
        write_gguf(aside / "model", aside / path.name, kind, run_folder.name, origin)
        os.rename(aside / path.name, path)
        fsync_folder(path.parent)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error}. Free space, fix the permissions, or choose another"
            " file with --to."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    merged = ", adapters merged" if is_adapted else ""
    contents = (
        f"the whole model{merged}, matrices in {kind} ({BITS_PER_WEIGHT[kind]:g} bits a weight),"
        " with its tokenizer; for llama.cpp and what is built on it"
    )
    return Exported(path, path.stat().st_size, contents, check)


def _refuse(run_folder: Path, path: Path) -> None:
    if path.suffix != SUFFIX:
        raise RequestError(f"--to {path}: with --gguf name a file that ends in {SUFFIX}.")
    if not recipe_of(run_folder).kind.writes_text:
        raise RequestError(
            f"{run_folder.name} writes no text, and --gguf is for models that do. Leave it out to"
            " export the model's folder."
        )


def _origin(run_folder: Path, kind: GgufType) -> str:
    """Return a hash of the run's model and of how it is written; empty for a run of an earlier
    version, whose model has no hashes.
    """
    manifest = run_folder / MODEL_FOLDER / MANIFEST
    if not manifest.is_file():
        return ""
    return hashlib.sha256(f"{kind} {sha256_of(manifest)}".encode()).hexdigest()


def _whole_model(run_folder: Path, folder: Path, *, is_adapted: bool) -> MergeCheck | None:
    """Write the whole model into a folder, with the tokens that end its answers."""
    if is_adapted:
        return export_merged(run_folder, folder, "fp32").merge
    export_run(run_folder, folder)
    return None
