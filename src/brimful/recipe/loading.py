"""Recipes from YAML files and shipped names, with `key=value` overrides; every problem in one
error, with brimful's name for what other tools call otherwise.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pydantic

from brimful.base.discover import did_you_mean, names_in, what_stands_at
from brimful.base.dotted import flatten, override, parse_mapping
from brimful.base.errors import RecipeError
from brimful.base.kept_values import kept_value
from brimful.base.problems import problem_lines
from brimful.base.text import plural
from brimful.base.types import JsonDict, Numbers, Texts
from brimful.recipe.adapter_folder import go_on_with_adapters
from brimful.recipe.data import TABLE_ENDS, unpacked_name
from brimful.recipe.presets import (
    PresetRecipe,
    choosing,
    how_to_choose,
    require_preset,
    take_presets,
)
from brimful.recipe.sections import MODEL_TAGS, Recipe

_NAMES = {
    "model": "base_model model_name model_name_or_path model_id",
    "method": "finetune finetuning_type stage rl",
    "quantize": "load_in_4bit load_in_8bit quantization_bit quantize_base",
    "sequence_length": """max_length max_seq_length max_seq_len cutoff_len sequence_len
        block_size max_prompt_length""",
    "batch.sequences": """batch_size bs global_batch_size train_batch_size effective_batch
        effective_batch_size grad_accum gradient_accumulation_steps""",
    "training.epochs": "num_epochs num_train_epochs n_epochs",
    "training.steps": "max_steps max_iters num_steps",
    "adapter.rank": "lora lora_r lora_rank r use_peft",
    "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout",
    "adapter.targets": """lora_target lora_target_modules lora_target_linear target_modules
        lora_attn_modules apply_lora_to_mlp""",
    "adapter.dora": "use_dora peft_use_dora",
    "adapter.rslora": "use_rslora peft_use_rslora",
    "optimizer.kind": "optim use_muon",
    "optimizer.learning_rate": "lr",
    "optimizer.schedule": "lr_scheduler lr_scheduler_type",
    "optimizer.warmup": "warmup_ratio warmup_steps num_warmup_steps",
    "optimizer.clip_norm": "max_grad_norm clip_grad_norm grad_clip gradient_clipping",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon",
    "preference.loss": "pref_loss",
    "preference.beta": "rl_beta dpo_beta pref_beta orpo_alpha",
    "preference.label_smoothing": "dpo_label_smoothing",
    "preference.sft_weight": "cpo_alpha pref_ftx rpo_alpha loss_weights",
    "preference.margin": "simpo_gamma",
    "preference.desirable_weight": "kto_desirable_weight kto_chosen_weight",
    "preference.undesirable_weight": "kto_undesirable_weight kto_rejected_weight",
    "preference.reference": "precompute_ref_log_probs ref_model rl_adapter_ref_model",
    "rewards.samples_per_prompt": "num_generations grpo_samples",
    "rewards.max_new_tokens": "max_completion_length max_generated_tokens",
    "rewards.batches": "steps_per_generation generation_batch_size",
    "data.path": "dataset datasets dataset_name dataset_path data_path train_file source",
    "data.splits": "dataset_train_split",
    "data.text_column": "dataset_text_field text_field",
    "data.max_documents": "max_samples max_train_samples",
    "data.loss_on": """train_on_inputs train_on_input train_on_prompt assistant_only_loss
        completion_only_loss""",
    "data.validation": "val_size val_set_size validation_file eval_dataset",
    "plan.compile": "torch_compile",
    "plan.loader_workers": "dataloader_num_workers num_workers",
    "plan.micro_batch": "micro_batch_size per_device_train_batch_size",
    "plan.recompute": """gradient_checkpointing activation_checkpointing use_reentrant_gc
        enable_activation_checkpointing disable_gradient_checkpointing""",
    "plan.offload": "activation_offloading enable_activation_offloading use_unsloth_gc",
    "plan.attention": """attn_implementation flash_attn flash_attention sdp_attention
        eager_attention use_flash_attention_2""",
    "plan.precision": "bf16 fp16 dtype torch_dtype bfloat16 float16 pure_bf16",
    "plan.sampling": "use_vllm",
    "plan.packing": "sample_packing neat_packing packed dpo_padding_free",
    "plan.spread": "deepspeed fsdp fsdp_config custom_sharded_layers data_parallel_shard_dim",
    "evaluation.every": "eval_steps eval_interval",
    "evaluation.max_sequences": "max_eval_samples eval_iters limit_val_batches",
    "evaluation.patience": "early_stopping_patience",
    "checkpoint.every": "save_steps save_interval",
    "checkpoint.keep": "save_total_limit",
    "run.folder": "output_dir out_dir",
    "run.name": "run_name",
    "run.loggers": "report_to",
}
OTHER_NAMES: Texts = {name: key for key, names in _NAMES.items() for name in names.split()}
"""Name of another tool's -> brimful's dotted key."""
OTHER_VERBS: Texts = {
    "finetune": "train",
    "fine-tune": "train",
    "tune": "train",
    "sft": "train",
    "dpo": "train",
    "pretrain": "train",
    "fit": "plan",
    "estimate": "plan",
    "eval": "evaluate",
    "chat": "generate",
    "infer": "generate",
    "inference": "generate",
    "merge": "export",
    "push": "export",
    "convert": "export",
    "webui": "studio",
    "ui": "studio",
    "list": "runs",
    "ls": "runs",
}
"""Verb of another tool's -> brimful's."""


SHIPPED_PACKAGE = "brimful.recipes"


def shipped_names() -> list[str]:
    """Names of the recipes that come with brimful."""
    return names_in(SHIPPED_PACKAGE, ".yaml")


def shipped_text(name: str) -> str:
    """The YAML of a shipped recipe, as written.

    Raises:
        RecipeError: no shipped recipe has this name.
    """
    if name not in shipped_names():
        raise RecipeError(
            f"no shipped recipe {name!r}{did_you_mean(name, shipped_names())} Shipped:"
            f" {', '.join(shipped_names())}."
        )
    return resources.files(SHIPPED_PACKAGE).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def load(name_or_path: str, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Read a recipe and apply `dotted.key=value` overrides, values in YAML.

    `preset=NAME` among them chooses a preset of the file, whose changes are applied first. If the
    overrides change the effective batch, learning rates that they do not set are scaled by
    `optimizer.scale_learning_rate`; the result holds the scaled values.

    Raises:
        RecipeError: the recipe or the preset does not exist, is not YAML, or breaks rules; all of
            them are listed.
    """
    values, origin = _values_of(name_or_path)
    return _changed(values, overrides, origin)


def load_text(text: str, origin: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe written in a text, by the rules of `load`.

    Args:
        origin: Named in errors.

    Raises:
        RecipeError: it is not YAML, or breaks rules; all of them are listed.
    """
    return _changed(parse_mapping(text, origin), overrides, origin)


def presets_of(name_or_path: str) -> dict[str, PresetRecipe]:
    """Return the presets of a recipe by name, in the order of the file.

    Raises:
        RecipeError: the recipe cannot be read, or its presets break rules.
    """
    values, origin = _values_of(name_or_path)
    _, offered, problems = take_presets(values)
    if problems:
        raise _wrong(origin, problems)
    return offered


def with_changes(recipe: Recipe, changes: Sequence[str], origin: str) -> Recipe:
    """Return a recipe with `dotted.key=value` changes, by the rules of `load`.

    Args:
        origin: Named in the error.

    Raises:
        RecipeError: they do not make a recipe; all problems are listed.
    """
    return _changed(recipe.model_dump(mode="json"), changes, origin)


def _values_of(name_or_path: str) -> tuple[JsonDict, str]:
    """Return the values of a recipe file, and its name in errors. Those of shipped recipes are kept
    parsed.
    """
    text, origin = _read(name_or_path)
    if name_or_path not in shipped_names():
        return parse_mapping(text, origin), origin
    values: JsonDict = kept_value(
        f"{SHIPPED_PACKAGE}.{name_or_path}", text, lambda: parse_mapping(text, origin)
    )
    return values, origin


@dataclass(frozen=True)
class _BeforeOverrides:
    """A recipe before the user's overrides.

    Attributes:
        values: Its values, with the changes of the chosen preset.
        written: The same without the preset's changes.
        preset: The name of the chosen preset.
        offered: The names of all presets.
        problems: What is wrong with the presets.
    """

    values: JsonDict
    written: JsonDict
    preset: str | None
    offered: tuple[str, ...]
    problems: tuple[str, ...]


def _changed(written: JsonDict, overrides: Sequence[str], origin: str) -> Recipe:
    preset_choice = choosing(overrides)
    base = _before_overrides(written, preset_choice, origin)
    changes = [assignment for assignment in overrides if assignment not in preset_choice]
    values = copy.deepcopy(base.values)
    problems = [*base.problems, *_apply(changes, values), *go_on_with_adapters(values)]
    _follow_names(values, _keys(changes))
    recipe = _validate(values, base, origin, problems)
    scaled = _scaled_learning_rates(recipe, base.values, changes)
    if not scaled:
        return recipe
    values["optimizer"] |= scaled
    return _validate(values, base, origin, [])


def _before_overrides(
    written: JsonDict, preset_choice: Sequence[str], origin: str
) -> _BeforeOverrides:
    """Take the presets out of a recipe's values, and apply the one that is chosen.

    Args:
        preset_choice: The overrides that choose a preset, such as `preset=NAME`.
        origin: Named in errors.
    """
    values = copy.deepcopy(written)
    problems = _apply(preset_choice, values)
    name, offered, preset_problems = take_presets(values)
    preset = None if name is None else require_preset(name, offered, origin)
    without_preset = copy.deepcopy(values)
    if preset is not None:
        values["description"] = preset.description
        problems += [f"preset {name}: {problem}" for problem in _apply(preset.changes, values)]
    return _BeforeOverrides(
        values, without_preset, name, tuple(offered), (*problems, *preset_problems)
    )


def learning_rate_factor(before: Recipe, after: Recipe) -> float:
    """Return the factor on the learning rate of `before` by the rule of `after`: k of `step_growth`
    or its square root; 1 without a rule.
    """
    return float(
        step_growth(before, after) ** LEARNING_RATE_POWER[after.optimizer.scale_learning_rate]
    )


def step_growth(before: Recipe, after: Recipe) -> float:
    """Return k: how many times as much an optimizer step of `after` sees, in tokens; in examples if
    rows are examples, whose lengths vary.
    """
    if counts_examples(before, after):
        return after.effective_batch / before.effective_batch
    tokens, tokens_before = (
        recipe.effective_batch * recipe.sequence_length for recipe in (after, before)
    )
    return tokens / tokens_before


def counts_examples(*recipes: Recipe) -> bool:
    """Return whether the effective batch of one of them is counted in examples, not in tokens."""
    return any(recipe.kind.rows == "examples" for recipe in recipes)


LEARNING_RATE_POWER = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Power of k by which the learning rate grows, by `optimizer.scale_learning_rate`."""


def _scaled_learning_rates(
    recipe: Recipe, base_values: JsonDict, overrides: Sequence[str]
) -> Numbers:
    """Return the scaled values of the optimizer section, by key.

    Nothing is scaled if the user set the learning rate, or if the recipe is invalid without the
    user's changes, so that there is no batch to compare with.
    """
    set_keys = _keys(overrides)
    if not overrides or set_keys & {"optimizer", "optimizer.learning_rate"}:
        return {}
    try:
        base = Recipe.model_validate(base_values)
    except pydantic.ValidationError:
        return {}
    factor = learning_rate_factor(base, recipe)
    if factor == 1:
        return {}
    scaled = {"learning_rate": base.optimizer.learning_rate * factor}
    if (
        recipe.optimizer.min_learning_rate is not None
        and "optimizer.min_learning_rate" not in set_keys
    ):
        scaled["min_learning_rate"] = recipe.optimizer.min_learning_rate * factor
    return {key: float(f"{value:.6g}") for key, value in scaled.items()}


def _read(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        if what := what_stands_at(path):
            raise _unreadable(name_or_path, f"it is {what}")
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(name_or_path, str(error)) from error
    if name_or_path in shipped_names():
        return shipped_text(name_or_path), f"recipe {name_or_path}"
    hint = did_you_mean(name_or_path, shipped_names())
    raise RecipeError(
        f"no recipe {name_or_path!r}{hint} Shipped: {', '.join(shipped_names())}; or give a .yaml"
        " file."
    )


def _unreadable(name_or_path: str, reason: str) -> RecipeError:
    return RecipeError(
        f"recipe {name_or_path} cannot be read: {reason}. Shipped recipes:"
        f" {', '.join(shipped_names())}."
    )


def _apply(assignments: Sequence[str], values: JsonDict) -> list[str]:
    """Set overrides in place; return what is wrong with them."""
    problems = []
    for assignment in assignments:
        try:
            override(assignment, values, _RIVALS)
        except ValueError as error:
            problems.append(str(error))
    return problems


def _keys(assignments: Sequence[str]) -> set[str]:
    return {assignment.partition("=")[0] for assignment in assignments}


def _follow_names(values: JsonDict, set_keys: set[str]) -> None:
    """Let the file type that a recipe fixes for its own files give way, in place, where other files
    are named and their names say what they are.

    Args:
        set_keys: What the user sets.
    """
    data = values.get("data")
    if "data.path" not in set_keys or "data.file_type" in set_keys or not isinstance(data, dict):
        return
    fixed, paths = data.get("file_type", "auto"), data.get("path")
    if fixed == "auto":
        return
    places = [Path(str(path)) for path in (paths if isinstance(paths, list) else [paths])]
    files = [file for place in places for file in [place, *place.rglob("*")]]
    ends = {unpacked_name(file.name).rpartition(".")[2] for file in files}
    said = ends & {*TABLE_ENDS}
    if said and fixed not in said:
        data["file_type"] = "auto"


_RIVALS = {"batch": ("sequences", "tokens"), "training": ("steps", "epochs", "tokens")}
"""Fields of which a section has exactly one: overriding one removes the file's others."""


def _validate(values: JsonDict, base: _BeforeOverrides, origin: str, problems: list[str]) -> Recipe:
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        broken = problem_lines(error, Recipe, MODEL_TAGS, OTHER_NAMES)
        of_preset = _broken_rules(base.values) - _broken_rules(base.written)
        for line in broken:
            by = f"preset {base.preset}: " if line in of_preset else ""
            problems = [*problems, f"{by}{line}"]
        raise _wrong(origin, problems, base) from None
    if problems:
        raise _wrong(origin, problems, base)
    return recipe


def _broken_rules(values: JsonDict) -> set[str]:
    try:
        Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        return set(problem_lines(error, Recipe, MODEL_TAGS, OTHER_NAMES))
    return set()


def _wrong(
    origin: str, problems: Sequence[str], base: _BeforeOverrides | None = None
) -> RecipeError:
    lines = "\n".join(f"  - {problem}" for problem in problems)
    count = plural(len(problems), "problem")
    if base and base.offered and base.preset is None:
        lines += f"\nIt has presets, and none is chosen: {how_to_choose(base.offered)}."
    return RecipeError(
        f"{origin} has {count}:\n{lines}\nEvery key is described by `brimful recipes keys`."
    )


def differences(before: Recipe, after: Recipe) -> dict[str, tuple[object, object]]:
    """Dotted key -> (before, after), for every field in which the two differ."""
    old, new = flatten(before.model_dump(mode="json")), flatten(after.model_dump(mode="json"))
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    }
