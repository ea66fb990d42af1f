"""A run's model for use elsewhere: what training left, copied; or adapters merged into their base,
and checked against the two apart.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.manifest import MANIFEST, is_whole_of, note_hashes, sha256_of
from brimful.base.rundir import fsync_folder, read_json
from brimful.base.units import format_bytes
from brimful.generation.load import (
    LoadedRun,
    base_of,
    load_run,
    load_unquantised,
    recipe_of,
    trained_folder,
    write_ends,
)
from brimful.hardware.host import disk_free_bytes
from brimful.model.description import is_own_architecture
from brimful.model.published import (
    ADAPTER_FILES,
    DTYPES,
    Loading,
    inference_attention,
    is_adapter_folder,
    load_model,
    merge_adapters,
    without_adapters,
)
from brimful.model.quiet import without_progress_bars
from brimful.runs.files import CLASSIFIER_FILE, MODEL_FOLDER, RECIPE_FILE
from brimful.training.export import remove_leftovers

Dtype = Literal["bf16", "fp16", "fp32"]
CPU = torch.device("cpu")
"""Where models are merged: memory for fp32 weights is there more often than on a GPU, and one
forward pass is enough.
"""
PROBE = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return"
    " total / len(values)\n\n\nprint(mean([1, 2, 3]))\n"
)
PROBE_TOKENS = 48
SUMMING = 1e-4
"""fp32 sums in another order move a logit by less than this share of the largest one; far more than
the 5e-6 seen in tests.
"""
DRAWS = 2.0
"""Rounding may move logits this many times as far as one random draw of it does, each weight by up
to a whole step.
"""


@dataclass(frozen=True)
class MergeCheck:
    """Logits of the merged model beside those of base and adapters apart, all computed in fp32.

    Attributes:
        tokens: Positions compared, over the whole vocabulary.
        unrounded: The largest difference while the merged weights are in fp32.
        summing: What it may be, because sums are made in another order.
        difference: The largest difference of the model read back from its files, its weights
            rounded.
        allowed: What it may be, by `summing` and by rounding of the weights.
        tuning: The largest difference that the adapters make, for comparison.
        quantized: The largest difference to the model as it was trained, on the 4-bit base; None
            where there was none.
        same_choice: Number of the `tokens` positions at which the 4-bit model and the merged one
            find the same next token likeliest.
    """

    tokens: int
    unrounded: float
    summing: float
    difference: float
    allowed: float
    tuning: float
    quantized: float | None = None
    same_choice: int | None = None


"""What a classifier's logits become labels by."""


@dataclass(frozen=True)
class Exported:
    """What was written: `contents` in words, and how a merge compares. `is_older` says that an
    earlier command wrote all of it.
    """

    folder: Path
    num_bytes: int
    contents: str
    merge: MergeCheck | None = None
    is_older: bool = False

    def lines(self) -> list[str]:
        """The check in lines for people."""
        if self.is_older:
            size = format_bytes(self.num_bytes)
            return [f"{self.folder} ({size}) is there already, {self.contents}: nothing to do"]
        told = [f"wrote {self.folder} ({format_bytes(self.num_bytes)}): {self.contents}"]
        if (check := self.merge) is not None:
            told.append(
                f"beside base and adapters apart, logits at {check.tokens} tokens differ by up to"
                f" {check.difference:.2g}; rounding allows {check.allowed:.2g} (before rounding"
                f" {check.unrounded:.1g}); tuning moved them by up to {check.tuning:.2g}"
            )
            if check.quantized is not None:
                told.append(
                    "the merged model rests on the unquantised base: its logits differ from those"
                    f" of the 4-bit model that was trained by up to {check.quantized:.2g}; the"
                    f" likeliest next token is the same at {check.same_choice} of {check.tokens}"
                )
        return told


def export(
    run_folder: Path, to: Path | None = None, *, merge: bool = False, dtype: Dtype | None = None
) -> Exported:
    """Copy a run's model, or merge its adapters (into bf16 by default), to a folder; by default
    `export` or `merged` in the run's. A folder that holds all of this export already is left as it
    is.

    Raises:
        BrimfulError: as `export_run` and `export_merged`; RequestError for a type where nothing is
            merged.
    """
    if merge:
        return export_merged(run_folder, to or run_folder / "merged", dtype or "bf16")
    if dtype is not None:
        raise RequestError(
            "--dtype belongs to --merge: without it, weights are copied as they are."
        )
    return export_run(run_folder, to or run_folder / "export")


def export_run(run_folder: Path, to: Path) -> Exported:
    """Copy a finished run's model: adapters in PEFT layout with their base named, or the whole
    model; with its tokenizer.

    Raises:
        RunFolderError: the run is not finished, or `to` cannot be written.
        RequestError: `to` exists, and is something else than a whole export of this run.
    """
    source = trained_folder(run_folder)
    origin = _origin(run_folder, "copy")
    if is_whole_of(to, origin):
        return _older(to)
    with _new_folder(to, _size_bytes(source), origin) as aside:
        shutil.copytree(source, aside, dirs_exist_ok=True)
        recipe = recipe_of(run_folder)
        contents = "the whole model with its tokenizer"
        if isinstance(recipe.model, str) and recipe.kind.writes_text:
            write_ends(aside, recipe)
        if is_adapter_folder(aside):
            source_of_base = Path(base_of(run_folder))
            base = str(source_of_base.resolve() if source_of_base.is_dir() else source_of_base)
            _edit_json(aside / ADAPTER_FILES[0], base_model_name_or_path=base)
            contents = f"adapters in PEFT layout for {base}, with its tokenizer"
        elif recipe.kind.gives_labels:
            shutil.copy2(run_folder / CLASSIFIER_FILE, aside)
            contents += (
                f"; and {CLASSIFIER_FILE}, since what transformers makes of the model alone is not"
                " calibrated: the probabilities of"
            )
            contents += (
                " `brimful predict` are softmax((logits - log_weights) / temperature + bias), and"
                " texts are prepared by its steps first"
            )
        if is_own_architecture(recipe.model):
            contents += (
                "; transformers reads it after `from brimful.model.registered import register;"
                " register()`"
            )
    return Exported(to, _size_bytes(to), contents)


def export_merged(run_folder: Path, to: Path, dtype: Dtype = "bf16") -> Exported:
    """Merge a run's adapters into their base, which is loaded unquantised, and write the whole
    model, rounded once to `dtype`.

    The model is read back from its files and compared before the folder gets its name. Needs memory
    for the model in fp32.

    Raises:
        RunFolderError: the run is not finished, its base changed, `to` cannot be written, or the
            merged model is not the tuned one.
        RequestError: there are no adapters, or `to` exists and is something else than a whole
            export of this run with the same settings.
        PlanError: base or adapters cannot be loaded.
    """
    if not is_adapter_folder(trained_folder(run_folder)):
        raise RequestError(
            f"{run_folder.name} has no adapters to merge: its model is whole already. Leave out"
            " --merge."
        )
    origin = _origin(run_folder, f"merge {dtype}")
    if is_whole_of(to, origin):
        return _older(to)
    _refuse_existing(to)
    loaded = load_unquantised(run_folder, CPU)
    ids_T = _probe_ids(loaded)
    tuned_TV = _logits(loaded.model, ids_T)
    with without_adapters(loaded.model):
        base_TV = _logits(loaded.model, ids_T)
    num_parameters = sum(
        parameter.numel()
        for name, parameter in loaded.model.named_parameters()
        if "lora_" not in name
    )
    with _new_folder(to, num_parameters * DTYPES[dtype].itemsize, origin) as aside:
        merged = merge_adapters(loaded.model)
        unrounded, summing = (
            _largest(_logits(loaded.model, ids_T) - tuned_TV),
            SUMMING * _largest(tuned_TV),
        )
        rounded = merged | _round(loaded.model, DTYPES[dtype])
        with without_progress_bars():
            loaded.model.save_pretrained(aside)
        loaded.tokenizer.save_pretrained(aside)
        write_ends(aside, loaded.recipe)
        del loaded
        difference, by_rounding = _read_back(aside, ids_T, tuned_TV, rounded, DTYPES[dtype])
        check = MergeCheck(
            ids_T.numel(),
            unrounded,
            summing,
            difference,
            summing + by_rounding,
            _largest(tuned_TV - base_TV),
        )
        refuse_unlike(check, dtype)
        if recipe_of(run_folder).quantize != "none":
            check = _beside_quantized(check, run_folder, aside, ids_T)
    return Exported(
        to,
        _size_bytes(to),
        f"the whole model in {dtype}, adapters merged, with its tokenizer",
        check,
    )


def _origin(run_folder: Path, way: str) -> dict[str, str]:
    """Return what an export is made of: the way, and the hashes of the run's files that decide it;
    empty for a run of an earlier version, whose model has no hashes.
    """
    names = (f"{MODEL_FOLDER}/{MANIFEST}", RECIPE_FILE, CLASSIFIER_FILE)
    hashes = {name: sha256_of(run_folder / name) for name in names if (run_folder / name).exists()}
    return {"way": way, **hashes} if names[0] in hashes else {}


def _older(to: Path) -> Exported:
    fsync_folder(to.parent)  # the command that wrote it may have been killed just before
    return Exported(to, _size_bytes(to), "a whole export of this run, by its hashes", is_older=True)


def _probe_ids(loaded: LoadedRun) -> Tensor:
    ids = loaded.encode(PROBE)[: min(PROBE_TOKENS, loaded.context)]
    return torch.tensor([ids])


def _logits(model: PreTrainedModel, ids_T: Tensor) -> Tensor:
    with torch.inference_mode():
        logits_TV: Tensor = model(input_ids=ids_T, use_cache=False).logits[0].float()
    return logits_TV


def _round(model: PreTrainedModel, dtype: torch.dtype) -> frozenset[str]:
    """Weights in another type, in place; the names of those that it changed."""
    changed = set()
    for name, parameter in model.named_parameters():
        before, parameter.data = parameter.data, parameter.data.to(dtype)
        if not torch.equal(parameter.data.to(before.dtype), before):
            changed.add(name)
    return frozenset(changed)


def _read_back(
    folder: Path, ids_T: Tensor, tuned_TV: Tensor, rounded: frozenset[str], dtype: torch.dtype
) -> tuple[float, float]:
    """The largest difference of the written model's logits, and how far rounding may move them."""
    model = _load_written(folder)
    merged_TV = _logits(model, ids_T)
    _draw_rounding(model, rounded, dtype)
    return _largest(merged_TV - tuned_TV), DRAWS * _largest(_logits(model, ids_T) - merged_TV)


def refuse_unlike(check: MergeCheck, dtype: Dtype) -> None:
    """Stop where rounding does not explain a difference; not a number never passes.

    Raises:
        RunFolderError: it does not.
    """
    if not (check.unrounded <= check.summing and check.difference <= check.allowed):
        raise RunFolderError(
            "the merged model is not the tuned one: logits of the two differ by up to"
            f" {check.unrounded:.3g} in fp32, where {check.summing:.3g} is allowed, and by"
            f" {check.difference:.3g} in {dtype}, where {check.allowed:.3g} is. Nothing was"
            " written. Try another --dtype, or use the adapters with their base: leave out"
            " --merge."
        )


def _load_written(folder: Path) -> PreTrainedModel:
    return load_model(folder, Loading("fp32", inference_attention(folder), CPU))


def _draw_rounding(model: PreTrainedModel, names: frozenset[str], dtype: torch.dtype) -> None:
    """Move each of the named weights at random by up to a step of `dtype`, as rounding to either
    side would.
    """
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if name in names:
            _, exponent = torch.frexp(parameter.data)
            step = torch.finfo(dtype).eps * torch.exp2(exponent - 1.0)
            parameter.data += step * (2 * torch.rand(parameter.shape, generator=generator) - 1)


def _beside_quantized(
    check: MergeCheck, run_folder: Path, merged_folder: Path, ids_T: Tensor
) -> MergeCheck:
    merged_TV = _logits(_load_written(merged_folder), ids_T)
    quantized_TV = _logits(load_run(run_folder, CPU, torch.float32).model, ids_T)
    same = int((merged_TV.argmax(-1) == quantized_TV.argmax(-1)).sum())
    return replace(check, quantized=_largest(merged_TV - quantized_TV), same_choice=same)


def _largest(difference_TV: Tensor) -> float:
    return difference_TV.abs().max().item()


def _edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(read_json(path) | values, indent=2) + "\n", encoding="utf-8")


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _refuse_existing(to: Path) -> None:
    if to.exists():
        raise RequestError(
            f"{to} exists; an export never replaces anything. Remove it, or choose another folder"
            " with --to FOLDER."
        )


@contextmanager
def _new_folder(to: Path, num_bytes: int, origin: Mapping[str, str]) -> Iterator[Path]:
    """A folder to fill that gets its name, and the hashes of its files with their origin, only when
    nothing failed.
    """
    _refuse_existing(to)
    if (free_bytes := disk_free_bytes(to)) < num_bytes:
        raise RunFolderError(
            f"{to} needs {format_bytes(num_bytes)}, only {format_bytes(free_bytes)} are free there."
            " Free some, or use --to FOLDER."
        )
    aside = to.with_name(f"{to.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(to)
        aside.mkdir()
        yield aside
        note_hashes(aside, origin=origin)
        os.rename(aside, to)
        fsync_folder(to.parent)
    except OSError as error:
        raise RunFolderError(
            f"{to} cannot be written: {error}. Free space, fix the permissions, or choose another"
            " folder with --to."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
