"""A finished run folder back as a model, its tokenizer and its recipe."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.discover import did_you_mean
from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal
from brimful.generation.engine import context_of
from brimful.model.quiet import without_progress_bars
from brimful.recipe import Recipe
from brimful.recipe import load as load_recipe

RECIPE_FILE, MODEL_FOLDER, METRICS_FILE = "recipe.yaml", "model", "metrics.jsonl"


@dataclass(frozen=True)
class LoadedRun:
    """A trained model ready to use, in eval mode on its device."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    recipe: Recipe
    run_folder: Path

    @property
    def end_of_text_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def context(self) -> int:
        """Positions the model can read at once."""
        return context_of(self.model)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; what looks like a special token is text, too."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def prompt_ids(self, prompt: str) -> list[int]:
        """Token ids to continue from: the prompt's, after end-of-text where every training sequence began with it; never empty."""
        ids = self.encode(prompt)
        return ids if ids and self.recipe.data.layout == "stream" else [self.end_of_text_id, *ids]


def resolve_run(name_or_path: str | Path, runs_folder: Path) -> Path:
    """The folder of a run given by its name in `runs_folder` or by its path.

    Raises:
        RunFolderError: no such run (names the nearest), or a folder that is not a run.
    """
    named, path = runs_folder / name_or_path, Path(name_or_path)
    for folder in (named, path):
        if (folder / RECIPE_FILE).is_file():
            return folder
    for folder in (named, path):
        if folder.exists() and folder.resolve() != runs_folder.resolve():
            raise RunFolderError(
                f"{folder} is not a run folder: it has no {RECIPE_FILE}. Give the name of a run in {runs_folder} or the path of one."
            )
    known = sorted(recipe.parent.name for recipe in runs_folder.glob(f"*/{RECIPE_FILE}"))
    listing = f" Runs there: {', '.join(known)}." if known else " There are no runs there yet: `brimful train RECIPE` makes one."
    raise RunFolderError(f"no run {str(name_or_path)!r} in {runs_folder}{did_you_mean(path.name, known)}{listing}")


def load_run(run_folder: Path, device: torch.device, dtype: torch.dtype) -> LoadedRun:
    """Load `run_folder/model` (Hugging Face layout, safetensors only, no code from the folder is run).

    Args:
        run_folder: See `resolve_run`.
        device: Where the weights go.
        dtype: What they become there.

    Raises:
        RunFolderError: not a run, training is not finished, or the model's files are damaged or do not belong together.
        RecipeError: recipe.yaml was edited into something that is no recipe.
    """
    if not (run_folder / RECIPE_FILE).is_file():
        raise RunFolderError(f"{run_folder} is not a run folder: it has no {RECIPE_FILE}. `brimful runs` lists the runs there are.")
    recipe = load_recipe(str(run_folder / RECIPE_FILE))
    folder = run_folder / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(_unfinished(run_folder))
    try:
        with without_progress_bars():
            model = _load_model(folder, dtype).to(device)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise RunFolderError(
            f"{folder} cannot be loaded: {error}\nContinue or repeat the training with the same command to write it again."
        ) from error
    _check_they_fit(folder, model, tokenizer)
    return LoadedRun(model.eval(), tokenizer, recipe, run_folder)


def _load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel
    model, info = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    problems = {what: sorted(map(str, info[what])) for what in ("missing_keys", "mismatched_keys", "unexpected_keys") if info[what]}
    if problems:
        told = "; ".join(f"{what.replace('_keys', '')}: {', '.join(keys[:5])}{' ...' * (len(keys) > 5)}" for what, keys in problems.items())
        raise ValueError(f"the weights are not those of config.json ({told}).")
    return model


def _check_they_fit(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    vocabulary = int(model.config.vocab_size)
    if len(tokenizer) > vocabulary:
        raise RunFolderError(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model only {vocabulary}. They come from different runs.")
    if tokenizer.eos_token_id is None:
        raise RunFolderError(
            f"{folder}: the tokenizer has no end-of-text token, so generation could not start or stop. Restore its tokenizer_config.json."
        )


def _unfinished(run_folder: Path) -> str:
    records = list(read_journal(run_folder / METRICS_FILE))
    step = max((int(record.get("step", 0)) for record in records), default=0)
    total = next((record["total_steps"] for record in reversed(records) if record.get("kind") == "start" and "total_steps" in record), None)
    reached = f"training reached step {step}" + (f" of {total}" if total is not None else "")
    return f"run {run_folder.name} has no model yet ({reached}). Run the same `brimful train` command again: it goes on from the last checkpoint."
