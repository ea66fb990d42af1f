"""What a report says of a run that tunes a published model: what was tuned and how, and the model
from before it was tuned.
"""

from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.units import format_bytes, format_count
from brimful.model.catalog import needs_folder
from brimful.recipe import BASE, OF_RECIPE
from brimful.report.scores import SplitScore, main_score, split_score
from brimful.report.table import Table, table_of
from brimful.runs.facts import Adapter, LabelsSection
from brimful.runs.files import MODEL_FOLDER, STUDY_FILE
from brimful.runs.folder import RunFolder, read_run
from brimful.runs.measurements import counted_parameters

LEARNED = {"completion": "answers only", "all": "prompts and answers"}
TEMPLATES = {
    "chat": "the tokenizer's chat template",
    "plain": "plain: text as it stands, messages under headings",
}
ADAPTER_FILE = "adapter_model.safetensors"
UNTUNED_FOLDER = "untuned"
"""In a run, the scores of the model that it tuned."""


def base_name(run: RunFolder) -> str:
    """Return the published model in a few words."""
    named = run.recipe.published_model
    # A folder that was made of a file is named by the file's hash.
    return short_name(named if needs_folder(named) else _source(run)) or "a published model"


def short_name(source: str) -> str:
    """Return a model's hub id as it is, its folder's name, or the name of the run or recipe that
    made it.
    """
    path = Path(source)
    if not path.is_absolute():
        return source.removeprefix(OF_RECIPE)
    return path.parent.name if path.name == MODEL_FOLDER else path.name


def _source(run: RunFolder) -> str:
    base = run.data.base
    return (base.source if base else "") or run.recipe.published_model


def method_in_words(run: RunFolder) -> str:
    """`with LoRA adapters of rank 16 on 4-bit weights (6.39M of 2.62B parameters)`."""
    total, trained = parameters(run)
    adapter = run.recipe.adapter
    if adapter is None:
        count = f"{format_count(total)} " if total else ""
        return f"with all its {count}parameters"
    kind = "DoRA" if adapter.dora else "LoRA"
    rank = "unknown rank" if adapter.rank is None else f"rank {adapter.rank:g}"
    text = f"with {kind} adapters of {rank}"
    if _is_4_bit(run):
        text += " on 4-bit weights"
    if total and trained:
        text += f" ({format_count(trained)} of {format_count(total)} parameters)"
    return text


def _is_4_bit(run: RunFolder) -> bool:
    return run.recipe.quantize == "nf4"


def parameters(run: RunFolder) -> tuple[float | None, float | None]:
    """Return all parameters, adapters among them, and those that are trained; None where not known
    yet.
    """
    total = run.predicted("parameters")
    counted = counted_parameters(run.folder / MODEL_FOLDER)
    if run.recipe.adapter is not None:
        return total, counted
    return counted or total, counted or total


def tuning_table(run: RunFolder) -> Table | None:
    """What was tuned and how, as facts; None for a fresh model."""
    if not run.is_tuned:
        return None
    total, trained = parameters(run)
    adapter, optimizer = run.recipe.adapter, run.recipe.optimizer
    trained_text = f"{trained:,.0f}" if trained else ""
    if total and trained and trained < total:
        trained_text += f" ({trained / total:.3%})"
    file = run.folder / MODEL_FOLDER / ADAPTER_FILE
    facts = {
        "Base": _source(run),
        "Fingerprint of the base": run.data.base.fingerprint if run.data.base else "",
        "Frozen weights": _frozen_weights(run),
        "Adapters": _adapter(adapter) if adapter else "none: every weight is trained",
        "On": _targets(adapter) if adapter else "",
        "Parameters": f"{total:,.0f}" if total else "",
        "Trained": trained_text,
        "Size of the adapters": format_bytes(file.stat().st_size) if file.is_file() else "",
        "Optimizer": (
            f"{optimizer.kind or 'adamw'}, peak learning rate"
            f" {optimizer.learning_rate or 'unknown'}"
        ),
        "Learned": _learned(run),
        "Template": TEMPLATES.get(run.data.template, "") * run.kind.answers_prompts,
    }
    return table_of(("", ""), [(name, value) for name, value in facts.items() if value])


def _learned(run: RunFolder) -> str:
    if run.kind.gives_labels:
        return f"the labels{_label_loss(run.recipe.labels)}"
    if run.kind.continues_text:
        return "whole documents"
    return LEARNED.get(run.recipe.data.loss_on, "")


def _frozen_weights(run: RunFolder) -> str:
    if _is_4_bit(run):
        return "4 bits (NF4, double quantisation)"
    return "as published" if run.recipe.adapter else ""


def _label_loss(section: LabelsSection) -> str:
    """How labels are weighted and what loss they have, where that is not the plain one."""
    weights = section.class_weights
    rules = []
    if weights not in (None, "none"):
        rules.append(f"weights {weights if isinstance(weights, str) else 'given'}")
    if section.loss == "focal":
        rules.append("focal loss")
    if section.label_smoothing:
        rules.append(f"label smoothing {section.label_smoothing:g}")
    return f" ({', '.join(rules)})" if rules else ""


def _adapter(adapter: Adapter) -> str:
    alpha = adapter.alpha
    if alpha is None and adapter.rank is not None:
        alpha = 2 * adapter.rank
    numbers = {"rank": adapter.rank, "alpha": alpha, "dropout": adapter.dropout or None}
    parts = [f"{name} {value:g}" for name, value in numbers.items() if value is not None]
    if adapter.rslora:
        parts.append("rank-stabilised")
    if adapter.dora:
        parts.append("weight-decomposed (DoRA)")
    return ", ".join(parts)


def _targets(adapter: Adapter) -> str:
    if adapter.targets == "all-linear":
        return "every linear layer but the output head"
    return (
        ", ".join(adapter.targets) if isinstance(adapter.targets, tuple) else adapter.targets or ""
    )


def before_tuning(run: RunFolder) -> RunFolder | None:
    """Return the scores of the same model untuned: of the run, or of the study it belongs to; None
    where it was not scored.
    """
    if not run.is_tuned:
        return None
    folder = run.folder.resolve()
    if (folder / UNTUNED_FOLDER).is_dir():
        return _read(folder / UNTUNED_FOLDER)
    if not (folder.parent / STUDY_FILE).is_file() or not (folder.parent / BASE).is_dir():
        return None
    base = _read(folder.parent / BASE)
    if base is None or base.data.base != run.data.base:
        return None
    return base if base.data.fingerprints == run.data.fingerprints else None


def _read(folder: Path) -> RunFolder | None:
    try:
        return read_run(folder)
    except RunFolderError:
        return None


def score_before(run: RunFolder) -> SplitScore | None:
    """Return the untuned model's score of the split that the run's main score is of."""
    before, score = before_tuning(run), main_score(run)
    if before is None or score is None:
        return None
    earlier = before.scores.likelihood.get(score.name.partition(",")[0])
    return split_score("Before tuning", earlier) if earlier else None
