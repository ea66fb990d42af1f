"""The model card of a run, for a repository on the hub: what it is, how it was trained, its scores
with their intervals, and how to use it. Places on this machine are left out of it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from brimful.base.dotted import format_yaml
from brimful.report.judgement import judgements_in_words
from brimful.report.kinds import report_kind
from brimful.report.page import data_page
from brimful.report.page.headline import device_name, loading_lines, sentence, task_verdict, verdict
from brimful.report.predictions import comparisons
from brimful.report.quantities import format_quantity
from brimful.report.table import Table, markdown_lines, table_of
from brimful.report.tasks import task_views
from brimful.report.tuned import base_name, before_tuning, tuning_table
from brimful.runs.files import CLASSIFIER_FILE
from brimful.runs.folder import RunFolder
from brimful.runs.tasks import TaskEvaluations

_PLACE = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/|`'\"]+/)+([^\s/|`'\",;)]+)")
"""A path from the root or the home folder; not an address, not a hub id."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
PIPELINES = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
}
PEFT, GGUF, WHOLE = "peft", "gguf", "transformers"
"""What is uploaded, by the hub's name of the library that reads it."""


def library_of(files: Sequence[str]) -> str:
    """Return which library reads a set of files, by their names."""
    if any(name.endswith(".gguf") for name in files):
        return GGUF
    return PEFT if "adapter_config.json" in files else WHOLE


def base_on_hub(run: RunFolder) -> str:
    """Return the hub id of the published model that a run tuned; empty for a folder or a fresh
    model.
    """
    named = run.data.base.source if run.data.base else run.recipe.published_model
    return named if _HUB_ID.fullmatch(named) else ""


def model_card(run: RunFolder, repository: str, files: Sequence[str]) -> str:
    """Return the text of README.md.

    Args:
        run: A finished run.
        repository: USER/NAME on the hub.
        files: Names of the files beside the card.
    """
    library = library_of(files)
    before = _tasks_before(run)
    parts = [
        f"---\n{format_yaml(_metadata(run, library))}---",
        f"# {repository.partition('/')[2]}",
        " ".join(filter(None, [sentence(run), verdict(run), task_verdict(run.tasks, before)])),
        f"## How to use it\n\n{_use(run, repository, library, files)}",
        *_section("Scores", _scores(run)),
        *_section("Training", _lines(_training(run)), _lines(tuning_table(run))),
        *_section("Data", _lines(data_page.split_table(run)), *run.data.notes),
        *_section("Predicted before, measured after", *_predicted(run)),
        f"## Licence\n\nNot stated. Those of {_sources(run)} apply.",
        f"Trained with brimful {run.environment.brimful or ''}".strip() + ".",
    ]
    return without_places("\n\n".join(part for part in parts if part)) + "\n"


def _sources(run: RunFolder) -> str:
    return "the data" if run.data.base is None else f"the data and of {base_name(run)}"


def without_places(text: str) -> str:
    """Replace paths from the root of this machine by the names at their ends."""
    return _PLACE.sub(r"\1", text)


def _section(heading: str, *parts: str) -> list[str]:
    body = "\n\n".join(filter(None, parts))
    return [f"## {heading}\n\n{body}"] if body else []


def _lines(table: Table | None) -> str:
    return "\n".join(markdown_lines(table)) if table else ""


def _metadata(run: RunFolder, library: str) -> dict[str, object]:
    pipeline = PIPELINES[report_kind(run).auto_class]
    values: dict[str, object] = {
        "library_name": library,
        "pipeline_tag": pipeline,
        "tags": ["brimful"],
    }
    if base := base_on_hub(run):
        values["base_model"] = base
    return values


def _scores(run: RunFolder) -> str:
    views = task_views(run.tasks, _tasks_before(run))
    tasks = [f"**{view.name}** ({view.about})\n\n{_lines(view.metrics)}" for view in views]
    return "\n\n".join(filter(None, [_lines(report_kind(run).score_table(run)), *tasks]))


def _tasks_before(run: RunFolder) -> TaskEvaluations | None:
    before = before_tuning(run)
    return before.tasks if before else None


def _training(run: RunFolder) -> Table | None:
    recipe, batch = run.recipe, run.recipe.batch
    size = f"{batch.sequences:,.0f} sequences" if batch.sequences else ""
    if batch.tokens:
        size = f"{batch.tokens:,.0f} tokens"
    facts = {
        "Recipe": recipe.name,
        "Method": recipe.method,
        "Steps": f"{run.last_step:,}",
        "Effective batch": size,
        "Sequence length": f"{recipe.sequence_length:,.0f}" if recipe.sequence_length else "",
        "Peak learning rate": recipe.optimizer.learning_rate or "",
        "Precision": run.plan.precision if run.plan else "",
        "Seed": "" if recipe.seed is None else f"{recipe.seed:.0f}",
        "Device": device_name(run),
    }
    return table_of(("", ""), [(name, value) for name, value in facts.items() if value])


def _predicted(run: RunFolder) -> list[str]:
    """Return the table of what was planned and measured, and how good it was in all."""
    found = comparisons(run)
    rows = [
        (
            each.name,
            format_quantity(each.key, each.predicted),
            format_quantity(each.key, each.measured),
        )
        for each in found
        if each.measured is not None
    ]
    table = table_of(("", "Predicted", "Measured"), rows)
    words = judgements_in_words([each.judgement for each in found])
    return [_lines(table), f"{words}." if words else ""]


def _use(run: RunFolder, repository: str, library: str, files: Sequence[str]) -> str:
    if library == GGUF:
        file = next(name for name in files if name.endswith(".gguf"))
        return f"```sh\nllama-cli -hf {repository} -hff {file}   # llama.cpp\n```"
    lines = [*loading_lines(run, repository, adapters=library == PEFT), *_asking(run)]
    code = "\n".join(lines)
    return f"```python\n{code}\n```{_classifier_note(files)}"


def _asking(run: RunFolder) -> list[str]:
    """Return the lines that ask the model one thing."""
    pipeline = PIPELINES[report_kind(run).auto_class]
    if pipeline != "text-generation":
        return ['print(model(**tokenizer("A text.", return_tensors="pt")).logits)']
    if run.data.prompts == "messages" and run.data.template == "chat":
        return [
            'messages = [{"role": "user", "content": "..."}]',
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True',
            ")",
            "answer = model.generate(**inputs, max_new_tokens=200)",
            'print(tokenizer.decode(answer[0][inputs["input_ids"].shape[1] :]))',
        ]
    return [
        'inputs = tokenizer("Once", return_tensors="pt")',
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=200)[0]))",
    ]


def _classifier_note(files: Sequence[str]) -> str:
    if CLASSIFIER_FILE not in files:
        return ""
    return (
        f"\n\nThese logits are not calibrated: probabilities are softmax((logits - log_weights) /"
        f" temperature + bias) with the values of {Path(CLASSIFIER_FILE).name}, and texts are"
        " prepared by its steps first. `brimful predict` does both."
    )
