"""What tuning SmolLM2-135M-Instruct on Python instructions changes: held-out loss, syntax, BLEU,
HumanEval and MBPP of the untuned model, LoRA of three ranks, QLoRA and full tuning, as a record.

    python benchmarks/code_smollm2.py --data FOLDER [--only lora-16,full] [KEY=VALUE]...

FOLDER holds gpteacher_codegen/codegen-instruct.json.gz, human_eval/HumanEval.jsonl.gz and
mbpp/mbpp.jsonl. Of the instructions those are taken whose answer is a Python program. The record is
written anew after every variant, the most telling ones first; the same command goes on where it
stopped, and the record lists what is missing. Runs lie in the runs folder (BRIMFUL_RUNS).
"""

import argparse
import ast
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brimful.base.env import keep_few_kernels, runs_folder, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.base.rundir import read_json, write_text_atomically  # noqa: E402
from brimful.chains import phases, pipeline  # noqa: E402
from brimful.chains.phases import Member  # noqa: E402
from brimful.chains.study_members import score_base, train_and_score  # noqa: E402
from brimful.recipe import BASE, Recipe, load  # noqa: E402
from brimful.report.comparison.compare import compare  # noqa: E402
from brimful.report.predictions import comparisons  # noqa: E402
from brimful.runs.folder import read_run  # noqa: E402
from record import write_record  # noqa: E402

ORDER = ("lora-16", "full", "qlora-16", "lora-8", "lora-32")
MORE_SEEDS = {"lora-16": (1, 2)}
"""Seeds of a variant besides the recipe's own."""
EXAMPLES = 360
"""A tenth of them held out."""
QUESTIONS = 200
"""Of MBPP; HumanEval has 164."""
SHOWN = ("peak_memory_bytes", "step_time_s", "training_time_s", "total_time_s")


def main() -> None:
    """Train and score one variant after the other, and write the record after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default=",".join(ORDER), help="variants, their seeds included")
    parser.add_argument("overrides", nargs="*", help="of the recipe, for every variant")
    options = parser.parse_args()
    wanted = options.only.split(",")
    recipe = load("code-smollm2-study", [*_settings(options.data), *options.overrides])
    console, folder = Console(width=120), phases.folder_of(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    source = pipeline.source_of(recipe, console)
    every = _members(recipe.model_copy(update={"model": source}))
    done: list[Member] = []
    for member in every:
        is_finished = (folder / member.folder.name / "scores.json").exists()
        if member.variant not in wanted and not is_finished:
            continue
        train_and_score(member, console)
        done.append(member)
        score_base(done, folder, console)
        missing = [each.folder.name for each in every if each not in done]
        _record(folder, recipe, done, missing)


def _settings(data: Path) -> list[str]:
    """The recipe's keys for these data."""
    files = {
        "humaneval": str((data / "human_eval" / "HumanEval.jsonl.gz").resolve()),
        "mbpp": str((data / "mbpp" / "mbpp.jsonl").resolve()),
    }
    return [
        f"data.path={_python_instructions(data)}",
        f"data.max_documents={EXAMPLES}",
        "evaluation.tasks=[humaneval, mbpp, code-syntax, code-bleu]",
        f"evaluation.data={json.dumps(files)}",
        f"evaluation.max_examples={QUESTIONS}",
        "evaluation.max_new_tokens=256",
        "run.name=code-smollm2-record",
    ]


def _python_instructions(data: Path) -> Path:
    """Write the instructions whose answer is a Python program into the runs folder."""
    packed = data / "gpteacher_codegen" / "codegen-instruct.json.gz"
    rows = json.loads(gzip.decompress(packed.read_bytes()))
    kept = [row for row in rows if _is_program(row["response"])]
    path = runs_folder() / "gpteacher-python.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, "".join(f"{json.dumps(row)}\n" for row in kept))
    return path.resolve()


def _is_program(text: str) -> bool:
    """Whether a text is Python with a definition, an import or a loop; prose of one word parses,
    too.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    telling = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.For, ast.While)
    return any(isinstance(statement, telling) for statement in body)


def _members(recipe: Recipe) -> list[Member]:
    """Every variant with the recipe's seed in the order above, then other seeds."""
    section = recipe.study
    assert section is not None
    first = {member.variant: member for member in phases.members(recipe)}
    members = [first[name] for name in ORDER]
    for name, seeds in MORE_SEEDS.items():
        changed = {"variants": {name: section.variants[name]}, "seeds": list(seeds)}
        of_seeds = recipe.model_copy(update={"study": section.model_copy(update=changed)})
        members += phases.members(of_seeds)
    return members


def _record(folder: Path, recipe: Recipe, done: Sequence[Member], missing: Sequence[str]) -> None:
    folders = [folder / BASE, *(member.folder for member in done)]
    comparison = compare(folders, [BASE, *(member.variant for member in done)])
    values: dict[str, Any] = {
        "recipe": _shown(recipe),
        "examples": read_json(done[0].folder / "data.json")["splits"],
        "missing": list(missing),
        "tasks": {each.name: _tasks(each) for each in folders},
        "predicted": {member.folder.name: _predicted(member.folder) for member in done},
        "comparison": comparison.to_json(),
    }
    print(f"record: {write_record('code_smollm2', values)}")


def _shown(recipe: Recipe) -> dict[str, Any]:
    """The recipe without this machine's folders."""
    values = recipe.model_dump(mode="json")
    values["data"]["path"] = Path(str(values["data"]["path"])).name
    values["evaluation"]["data"] = {
        task: Path(path).name for task, path in values["evaluation"]["data"].items()
    }
    return values


def _tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """How every task was asked, in what time, and how answers failed."""
    return {
        path.stem: {
            key: summary.get(key) for key in ("prompt", "n", "tokens", "seconds", "errors", "notes")
        }
        for path in sorted((folder / "evaluations").glob("*.json"))
        for summary in [read_json(path)]
    }


def _predicted(folder: Path) -> dict[str, dict[str, Any]]:
    """Predictions of a run's plan beside what was measured."""
    return {
        each.key: {
            "predicted": each.predicted,
            "interval": each.interval,
            "measured": each.measured,
        }
        for each in comparisons(read_run(folder))
        if each.key in SHOWN
    }


if __name__ == "__main__":
    main()
