"""What a tuned run adds to a report: what was tuned and how, the examples it learned from, and the
model from before it was tuned.
"""

from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.units import format_bytes, format_count
from brimful.recipe import BASE, OF_RECIPE
from brimful.report.quantities import format_number, with_interval
from brimful.report.table import Table
from brimful.report.tables import Score, main_score, ordered_splits, score_of, scored_splits
from brimful.runs.measurements import counted_parameters
from brimful.runs.runfiles import (
    Json,
    RunFiles,
    is_tuned,
    items,
    kind_of,
    number,
    read_run,
    section,
)

LEARNED = {"completion": "answers only", "all": "prompts and answers"}
ADAPTER_FILE = "adapter_model.safetensors"
UNTUNED_FOLDER, STUDY_FILE = "untuned", "study.json"
"""In a run, the scores of the model that it tuned; in a study, what it compared."""


def base_name(run: RunFiles) -> str:
    """The published model in a few words."""
    return short_name(_source(run)) or "a published model"


def short_name(source: str) -> str:
    """A model's hub id as it is, its folder's name, or the name of the run or recipe that made
    it.
    """
    path = Path(source)
    if not path.is_absolute():
        return source.removeprefix(OF_RECIPE)
    return path.parent.name if path.name == "model" else path.name


def _source(run: RunFiles) -> str:
    model = run.recipe.get("model")
    return str(section(run.data, "base").get("source") or (model if isinstance(model, str) else ""))


def manner(run: RunFiles) -> str:
    """`with LoRA adapters of rank 16 on 4-bit weights (6.39M of 2.62B parameters)`."""
    total, trained = parameters(run)
    adapter = section(run.recipe, "adapter")
    if not adapter:
        return (
            f"with all its {format_count(total)} parameters" if total else "with all its parameters"
        )
    count = (
        f"{format_count(trained)} of {format_count(total)} parameters" if total and trained else ""
    )
    kind = "DoRA" if adapter.get("dora") else "LoRA"
    bits = " on 4-bit weights" if run.recipe.get("quantize") == "nf4" else ""
    return f"with {kind} adapters of rank {adapter.get('rank')}{bits}" + f" ({count})" * bool(count)


def parameters(run: RunFiles) -> tuple[float | None, float | None]:
    """All parameters, adapters among them, and those that are trained; None where not known yet."""
    total = number(section(run.plan, "predicted").get("parameters"))
    counted = counted_parameters(run.folder / "model")
    return (
        (total, counted) if section(run.recipe, "adapter") else (counted or total, counted or total)
    )


def tuning_table(run: RunFiles) -> Table | None:
    """What was tuned and how, as facts; None for a fresh model."""
    if not is_tuned(run):
        return None
    total, trained = parameters(run)
    adapter, data, optimizer = (
        section(run.recipe, key) for key in ("adapter", "data", "optimizer")
    )
    share = f" ({trained / total:.3%})" if total and trained and trained < total else ""
    file = run.folder / "model" / ADAPTER_FILE
    facts = [
        ("Base", _source(run)),
        ("Fingerprint of the base", str(section(run.data, "base").get("fingerprint", ""))),
        (
            "Frozen weights",
            (
                "4 bits (NF4, double quantisation)"
                if run.recipe.get("quantize") == "nf4"
                else "as published"
                if adapter
                else ""
            ),
        ),
        ("Adapters", _adapter(adapter) if adapter else "none: every weight is trained"),
        ("On", _targets(adapter)),
        ("Parameters", f"{total:,.0f}" if total else ""),
        ("Trained", f"{trained:,.0f}{share}" if trained else ""),
        ("Size of the adapters", format_bytes(file.stat().st_size) if file.is_file() else ""),
        (
            "Optimizer",
            (
                f"{optimizer.get('kind', 'adamw')}, peak learning rate"
                f" {optimizer.get('learning_rate')}"
            ),
        ),
        (
            "Learned",
            (
                LEARNED.get(str(data.get("loss_on")), "")
                if kind_of(run) == "text"
                else "the labels" + _weights(run)
            ),
        ),
        (
            "Template",
            {
                "chat": "the tokenizer's chat template",
                "plain": "plain: text as it stands, messages under headings",
            }.get(str(run.data.get("template")), ""),
        ),
    ]
    return Table(("", ""), tuple((name, value) for name, value in facts if value))


def _weights(run: RunFiles) -> str:
    """How labels are weighted and what loss they have, where that is not the plain one."""
    rules = section(run.recipe, "labels")
    weights, loss, smoothing = (
        rules.get("class_weights"),
        str(rules.get("loss", "cross_entropy")),
        number(rules.get("label_smoothing")),
    )
    told = (
        []
        if weights in (None, "none")
        else [f"weights {'given' if isinstance(weights, dict) else weights}"]
    )
    told += ["focal loss"] if loss == "focal" else []
    told += [f"label smoothing {smoothing:g}"] if smoothing else []
    return f" ({', '.join(told)})" if told else ""


def _adapter(adapter: Json) -> str:
    rank, alpha = number(adapter.get("rank")), number(adapter.get("alpha"))
    alpha = 2 * rank if alpha is None and rank is not None else alpha
    told = [
        f"rank {rank:g}" if rank is not None else "",
        f"alpha {alpha:g}" if alpha is not None else "",
    ]
    told += [f"dropout {adapter['dropout']}"] if adapter.get("dropout") else []
    told += [
        name
        for key, name in (("rslora", "rank-stabilised"), ("dora", "weight-decomposed (DoRA)"))
        if adapter.get(key)
    ]
    return ", ".join(part for part in told if part)


def _targets(adapter: Json) -> str:
    targets = adapter.get("targets")
    if targets == "all-linear":
        return "every linear layer but the output head"
    return ", ".join(str(name) for name in items(targets)) or str(targets or "")


def example_table(run: RunFiles) -> Table | None:
    """What each split of the examples holds, and what became of those that were too long; None for
    documents.
    """
    splits = section(run.data, "splits")
    keys = ("examples", "tokens", "target_tokens", "longest_tokens", "cut", "dropped")
    rows = tuple(
        (name, *(format_number(section(splits, name).get(key)) for key in keys))
        for name in ordered_splits(splits)
    )
    columns = ("Split", "Examples", "Tokens", "Learned tokens", "Longest", "Cut", "Dropped")
    return (
        Table(columns, rows)
        if any("examples" in section(splits, name) for name in splits)
        else None
    )


def batch_sentence(run: RunFiles) -> str:
    """How a step's examples are cut to the device; empty when the plan does not say."""
    batch = section(run.recipe, "batch")
    micro_batch, length = (
        number(run.plan.get("micro_batch")),
        number(run.recipe.get("sequence_length")),
    )
    if micro_batch is None or not length:
        return ""
    examples = number(batch.get("sequences")) or (number(batch.get("tokens")) or 0) / length
    tokens = f"{micro_batch * length:,.0f} tokens ({micro_batch:.0f} x {length:.0f})"
    return (
        f"Every optimizer step sees {examples:,.0f} examples, in micro-batches of at most {tokens}."
        if examples
        else ""
    )


def before_tuning(run: RunFiles) -> RunFiles | None:
    """The scores of the same model untuned: of the run, or of the study it belongs to; None where
    it was not scored.
    """
    if not is_tuned(run):
        return None
    folder = run.folder.resolve()
    if (folder / UNTUNED_FOLDER).is_dir():
        return _scores_of(folder / UNTUNED_FOLDER)
    if not (folder.parent / STUDY_FILE).is_file() or not (folder.parent / BASE).is_dir():
        return None
    base = _scores_of(folder.parent / BASE)
    same = (
        base is not None
        and section(base.data, "base") == section(run.data, "base")
        and section(base.data, "fingerprints") == section(run.data, "fingerprints")
    )
    return base if same else None


def _scores_of(folder: Path) -> RunFiles | None:
    try:
        return read_run(folder)
    except RunFolderError:
        return None


def score_before(run: RunFiles) -> Score | None:
    """The untuned model's score of the split that the run's main score is of."""
    before, score = before_tuning(run), main_score(run)
    if before is None or score is None:
        return None
    split = score.name.partition(",")[0]
    return (
        score_of("Before tuning", before.scores[split])
        if split in scored_splits(before.scores)
        else None
    )


def answer_score_table(run: RunFiles) -> Table | None:
    """The loss over the answers of every scored split, the untuned model's below it."""
    before = before_tuning(run)
    rows = []
    for name, record in scored_splits(run.scores).items():
        rows.append(_score_row(name, record))
        if before is not None and name in scored_splits(before.scores):
            rows.append(_score_row(f"{name}, before tuning", before.scores[name]))
    columns = (
        "Split",
        "Loss (nats/token)",
        "Perplexity",
        "Bits per byte",
        "Learned tokens",
        "Examples",
    )
    return Table(columns, tuple(rows)) if rows else None


def _score_row(name: str, record: Json) -> tuple[str, ...]:
    score = score_of(name, record)
    return (
        name,
        with_interval(score.loss, score.loss_interval),
        format_number(record.get("perplexity"), 2),
        with_interval(score.bits_per_byte, score.bits_per_byte_interval),
        format_number(record.get("tokens")),
        format_number(record.get("documents")),
    )
