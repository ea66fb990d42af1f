"""A finished run folder back as a model, its tokenizer and its recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.manifest import require_sound
from brimful.base.rundir import read_journal
from brimful.data.chat import Template
from brimful.data.formats import Message, Prompt
from brimful.data.tokenizer import begin_of
from brimful.model.blocks import context_of
from brimful.model.fingerprint import folder_fingerprint, is_same_model
from brimful.model.obtained import folder_of_model
from brimful.model.published import (
    Loading,
    fingerprint_of,
    inference_attention,
    is_adapter_folder,
    load_adapters,
    load_model,
    reading,
)
from brimful.model.quiet import without_progress_bars
from brimful.model.registered import register
from brimful.model.tokenizer import load_tokenizer
from brimful.recipe import Recipe
from brimful.runs.deciding import ADAPTERS, read_deciding, recipe_of_run
from brimful.runs.files import DATA_FILE, JOURNAL_FILE, MODEL_FOLDER, PLAN_FILE, RECIPE_FILE
from brimful.runs.named import is_run


@dataclass(frozen=True)
class LoadedRun:
    """A trained model ready to use, in eval mode on its device."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    recipe: Recipe
    run_folder: Path
    template: Template | None = None
    """How prompts become tokens; None where the model only continues text."""
    is_tuned: bool = False
    """Whether it answers prompts as it was tuned to, or only continues text."""
    takes_messages: bool = False
    """Whether prompts are messages of a conversation, as in training."""

    @property
    def end_of_text_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        ends = {self.end_of_text_id, *end_ids_of(self.model.generation_config)}
        return frozenset(ends) if self.template is None else self.template.stop_ids

    @property
    def context(self) -> int:
        """Positions the model can read at once."""
        return context_of(self.model)

    def refuse_where_it_writes_nothing(self) -> None:
        """Raises RequestError where the run trained an encoder."""
        if not self.recipe.kind.writes_text:
            raise RequestError(
                f"{self.run_folder.name} is an encoder: it fills in masked words and writes no"
                " text. To sort texts with it, train a classifier: method=classify"
                f" model={self.run_folder / MODEL_FOLDER}"
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; what looks like a special token is text, too."""
        ids: list[int] = self.tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return ids

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids to continue from: the prompt's as in training, after end-of-text where every
        training sequence began with it; never empty.

        Args:
            prompt: Text, which is one user's message where the run was trained on messages; or
                messages.

        Raises:
            RequestError: the run does not continue text, or was not trained on messages.
        """
        self.refuse_where_it_writes_nothing()
        if self.template is not None:
            as_message = isinstance(prompt, str) and self.takes_messages
            return self.template.prompt_ids(
                (Message("user", str(prompt)),) if as_message else prompt
            )
        if not isinstance(prompt, str):
            raise RequestError(
                f"{self.run_folder.name} continues text; it was not trained on messages. Give the"
                " prompt as text."
            )
        ids = [*begin_of(self.tokenizer), *self.encode(prompt)]
        return ids if ids and self.recipe.data.layout == "stream" else [self.end_of_text_id, *ids]


def recipe_of(run_folder: Path) -> Recipe:
    """The recipe of a run.

    Raises:
        RunFolderError: not a run; RecipeError: recipe.yaml was edited into something that is no
            recipe.
    """
    if not is_run(run_folder):
        raise RunFolderError(
            f"{run_folder} is not a run folder: it has no {RECIPE_FILE}. Give the name of a run, or"
            " the path of its folder."
        )
    return recipe_of_run(run_folder)


def load_run(run_folder: Path, device: torch.device, dtype: torch.dtype) -> LoadedRun:
    """Load `run_folder/model` (Hugging Face layout, safetensors only, no code from the folder is
    run).

    Args:
        run_folder: See `resolve_run`.
        device: Where the weights go.
        dtype: What they become there.

    Raises:
        RunFolderError: not a run, training is not finished, or the model's files are damaged or do
            not belong together.
        RecipeError: recipe.yaml was edited into something that is no recipe.
        RequestError: the run trained something that writes no text.
    """
    recipe = recipe_of(run_folder)
    if recipe.kind.gives_labels:
        raise RequestError(
            f"{run_folder.name} sorts texts and writes none. `brimful predict {run_folder.name}"
            " FILE` gives labels."
        )
    folder = trained_folder(run_folder)
    if isinstance(recipe.model, str):
        return _load_tuned(run_folder, recipe, device, dtype)
    auto = AutoModelForMaskedLM if recipe.kind.fills_masks else AutoModelForCausalLM
    model, tokenizer = read_exported(folder, auto, dtype)
    model = model.to(device)
    _refuse_no_end(folder, tokenizer)
    return LoadedRun(model.eval(), tokenizer, recipe, run_folder)


def trained_folder(run_folder: Path) -> Path:
    """Where training left the model, whose files are verified.

    Raises:
        RunFolderError: it is not finished (says how far it is), or its files are damaged.
    """
    folder = run_folder / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(_unfinished(run_folder))
    try:
        require_sound(folder)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error}.\nRun the command that trained it again: it writes the model anew from its"
            " checkpoint."
        ) from error
    return folder


def _load_tuned(
    run_folder: Path, recipe: Recipe, device: torch.device, dtype: torch.dtype
) -> LoadedRun:
    """A tuned model: the base with the run's adapters, in the type it was trained in; or the run's
    own weights.
    """
    folder = run_folder / MODEL_FOLDER
    if is_adapter_folder(folder):
        model = load_base(run_folder, device)
        load_adapters(model, folder)
    else:
        weights = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
        model = load_model(folder, Loading(weights, inference_attention(folder), device))
    return _tuned(run_folder, recipe, model, load_tokenizer(folder), is_tuned=True)


def _tuned(
    run_folder: Path,
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_tuned: bool = False,
) -> LoadedRun:
    _refuse_no_end(run_folder / MODEL_FOLDER, tokenizer)
    if not recipe.kind.answers_prompts:
        return LoadedRun(model, tokenizer, recipe, run_folder)
    template = template_of(recipe, tokenizer, model.generation_config)
    takes_messages = read_deciding(run_folder, DATA_FILE).get("prompts") == "messages"
    return LoadedRun(model, tokenizer, recipe, run_folder, template, is_tuned, takes_messages)


def load_untuned(run_folder: Path, device: torch.device) -> LoadedRun:
    """The model that a run tuned, as it was before, with the run's tokenizer and template; with the
    adapters that the run went on with.

    Raises:
        RunFolderError: the run did not tune a published model, or that model has changed since.
        PlanError: that model cannot be loaded.
    """
    recipe = recipe_of(run_folder)
    model = load_base(run_folder, device)
    data = read_deciding(run_folder, DATA_FILE)
    base = data["base"]
    if recipe.adapter is not None and recipe.adapter.start:
        _refuse_other_adapters(run_folder, Path(recipe.adapter.start), base.get(ADAPTERS))
        load_adapters(model, Path(recipe.adapter.start))
    tokenizer = load_tokenizer(_present(base))
    tokenizer.chat_template = data.get("chat_template", tokenizer.chat_template)
    return _tuned(run_folder, recipe, model, tokenizer)


def _refuse_other_adapters(run_folder: Path, start: Path, fingerprint: object) -> None:
    """Raise RunFolderError if the adapters that a run went on with are gone or have changed."""
    if not is_adapter_folder(start):
        state = "are gone"
    elif not is_same_model(fingerprint, folder_fingerprint(start)):
        state = "have changed since"
    else:
        return
    raise RunFolderError(
        f"the adapters in {start} that {run_folder.name} went on with {state}. Put the old ones"
        " back there to see the model as it was before."
    )


def load_unquantised(run_folder: Path, device: torch.device) -> LoadedRun:
    """A run's adapters on their base in fp32, however the base was stored while they were trained.

    Raises:
        RunFolderError: as `load_base`.
        PlanError: base or adapters cannot be loaded.
    """
    recipe, folder = recipe_of(run_folder), trained_folder(run_folder)
    model = load_base(run_folder, device, unquantised=True)
    load_adapters(model, folder)
    return _tuned(run_folder, recipe, model, load_tokenizer(folder), is_tuned=True)


def load_base(
    run_folder: Path, device: torch.device, *, unquantised: bool = False
) -> PreTrainedModel:
    """The published model that a run tuned, in the type and with the quantisation it was trained
    with; or `unquantised`, in fp32.

    Raises:
        RunFolderError: the run did not tune a published model, or that model has changed since.
        PlanError: it cannot be loaded.
    """
    base = read_deciding(run_folder, DATA_FILE).get("base")
    if base is None:
        raise RunFolderError(
            f"{run_folder} trained a fresh model; there is nothing from before to load."
        )
    source = _present(base)
    if Path(source).is_absolute() and not Path(source).exists():
        raise RunFolderError(
            f"the model {source} that {run_folder.name} was tuned from is gone. Put it back there;"
            " adapters are nothing without it."
        )
    quantize = "none" if unquantised else recipe_of(run_folder).quantize
    plan = read_deciding(run_folder, PLAN_FILE)
    precision = "fp32" if unquantised else str(plan["precision"])
    packs_experts = not unquantised and bool(plan.get("packs_experts"))
    attention = inference_attention(source)
    model = load_model(
        source, Loading(precision, attention, device, quantize, packs_experts=packs_experts)
    )
    now = fingerprint_of(source, model)
    if not is_same_model(base["fingerprint"], now):
        raise RunFolderError(
            f"the model {source} that {run_folder.name} was tuned from has changed since"
            f" (fingerprint {base['fingerprint']}, now {now}). Put the old one back, or tune again"
            " under another name: run.name=NAME."
        )
    return model


def _present(base: Mapping[str, Any]) -> str:
    """Return the source of a base model. One whose folder in the cache was deleted is made
    again.
    """
    source = str(base["source"])
    if "origin" in base and not Path(source).is_dir():
        return str(folder_of_model(str(base["origin"]["model"])))
    return source


def base_of(run_folder: Path) -> str:
    """Hub id or folder of the published model that a run tuned; empty where it trained a fresh
    one.

    Raises:
        RunFolderError: data.json is damaged, or missing from a run that tuned one.
    """
    has_data = (run_folder / DATA_FILE).exists()
    is_needed = has_data or isinstance(recipe_of(run_folder).model, str)
    base = read_deciding(run_folder, DATA_FILE).get("base") if is_needed else None
    return "" if base is None else str(base["source"])


def template_of(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None
) -> Template:
    """The template of a tuned model; the tokens that end an answer are the recipe's, the
    tokenizer's and those of the generation config.

    Raises:
        DataError: a stop token that is none, or a template that the tokenizer does not have.
    """
    return Template.of(
        tokenizer,
        recipe.data.template,
        stop=recipe.sample.stop,
        end_ids=end_ids_of(generation_config),
    )


def write_ends(folder: Path, recipe: Recipe) -> None:
    """Let transformers end a text where the run's model does, by generation_config.json in a folder
    with a model or adapters and their tokenizer.
    """
    has_config = (folder / "generation_config.json").exists()
    config = GenerationConfig.from_pretrained(folder) if has_config else GenerationConfig()
    set_ends(config, recipe, load_tokenizer(folder))
    config.save_pretrained(folder)


def set_ends(config: GenerationConfig, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add the tokens that end a text of a tuned model; end-of-text is first, as some programs read
    only one.
    """
    ends = {int(tokenizer.eos_token_id), *end_ids_of(config)}
    if recipe.kind.answers_prompts:
        ends |= template_of(recipe, tokenizer, config).stop_ids
    config.eos_token_id = sorted(ends, key=lambda each: (each != tokenizer.eos_token_id, each))


def end_ids_of(generation_config: GenerationConfig | None) -> list[int]:
    """Tokens by which a published model's own configuration ends a text; it holds none, one or
    several.
    """
    ids = getattr(generation_config, "eos_token_id", None)
    return [] if ids is None else [ids] if isinstance(ids, int) else [int(each) for each in ids]


def read_exported(
    folder: Path, auto: Any, dtype: torch.dtype, *, attention: str | None = "sdpa"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in Hugging Face layout and its tokenizer, of one piece: safetensors only, nothing
    from the network, no code from the folder is run.

    Args:
        folder: Holds both.
        auto: transformers' Auto class for the kind of model.
        dtype: What the weights become.
        attention: transformers' attention implementation; None: its choice.

    Raises:
        RunFolderError: files are damaged or do not belong together.
    """
    register()
    settings: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": attention,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    with reading(lambda error: _damaged(folder, str(error))), without_progress_bars():
        model, info = auto.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **settings
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    problems = {
        what: sorted(map(str, info[what]))
        for what in ("missing_keys", "mismatched_keys", "unexpected_keys")
        if info[what]
    }
    if problems:
        told = "; ".join(
            f"{what.replace('_keys', '')}: {', '.join(keys[:5])}{' ...' * (len(keys) > 5)}"
            for what, keys in problems.items()
        )
        raise _damaged(folder, f"the weights are not those of config.json ({told}).")
    return model, tokenizer


def _damaged(folder: Path, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{folder} cannot be loaded: {reason}\nContinue or repeat the training with the same"
        " command to write it again."
    )


def _refuse_no_end(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.eos_token_id is None:
        raise RunFolderError(
            f"{folder}: the tokenizer has no end-of-text token, so generation could not start or"
            " stop. Restore its tokenizer_config.json."
        )


def _unfinished(run_folder: Path) -> str:
    records = list(read_journal(run_folder / JOURNAL_FILE))
    step = max((int(record.get("step", 0)) for record in records), default=0)
    total = next(
        (
            record["total_steps"]
            for record in reversed(records)
            if record.get("kind") == "start" and "total_steps" in record
        ),
        None,
    )
    reached = f"training reached step {step}" + (f" of {total}" if total is not None else "")
    return (
        f"run {run_folder.name} has no model yet ({reached}). Run the same `brimful train` command"
        " again: it goes on from the last checkpoint."
    )
