"""What a recipe learns, as a record: a model beside counting baselines of the same tokens, or a study's
or a chain of rounds' table with its tests.

    python benchmarks/learned.py shakespeare-char data.path=.../tinyshakespeare/input.txt
    python benchmarks/learned.py wikitext2-small data.path=.../wikitext-2
    python benchmarks/learned.py okadfa-small data.path=.../wikitext-2 --gpt2 .../gpt2_bpe
    python benchmarks/learned.py okadfa-ablation data.path=.../wikitext-2
    python benchmarks/learned.py code-offline evaluation.tasks=[code-syntax,bleu]
    python benchmarks/learned.py code-smollm2-study --gpteacher .../codegen-instruct.json.gz
        evaluation.tasks=[humaneval,mbpp,code-syntax,bleu]
        "evaluation.data={humaneval: .../HumanEval.jsonl.gz, mbpp: .../mbpp.jsonl}"
    python benchmarks/learned.py unit-rft-offline        # and unit-rft-smollm2, unit-conversion-small
        evaluation.tasks=[unit-conversion,unit-conversion-guide]
        "evaluation.data={unit-conversion-guide: .../unit_conversion/train.json}"

The tasks named here are those that pages show of the records.

Runs lie in the runs folder (BRIMFUL_RUNS) like those of `brimful run`, and finished ones are not made
again: the same command goes on where it stopped. Each variant of a study is made in a process of its
own, because what a process needed at most is the memory that is told of it. With `--gpt2`, the folder
of encoder.json and vocab.bpe as OpenAI published them, perplexity per token of GPT-2's tokenizer is
recorded, too. With `--gpteacher` instructions are learned whose answer is a Python program.
"""

import argparse
import ast
import gzip
import json
import math
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from brimful.base.env import keep_few_kernels, runs_folder, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch
from tokenizers import ByteLevelBPETokenizer  # noqa: E402

from brimful.base.rundir import read_journal, read_json, write_text_atomically  # noqa: E402
from brimful.chains import phases  # noqa: E402
from brimful.chains.finished import finished_run  # noqa: E402
from brimful.recipe import Recipe, load  # noqa: E402
from brimful.runs.files import STUDY_FILE  # noqa: E402
from record import write_record  # noqa: E402

RECORDS = {
    "code-offline": "code_offline",
    "code-smollm2-study": "code_smollm2",
    "okadfa-ablation": "okadfa_ablation",
    "unit-rft-offline": "rft_offline",
    "unit-rft-smollm2": "rft_smollm2",
}
"""Names of records by recipe; `learn-RECIPE` of others."""


def main() -> None:
    """Run a recipe, and record what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--gpt2", type=Path)
    parser.add_argument("--gpteacher", type=Path)
    options = parser.parse_intermixed_args()
    words = [options.recipe, *options.overrides]
    if options.gpteacher:
        words.append(f"data.path={_python_instructions(options.gpteacher)}")
    recipe = load(words[0], words[1:])
    if recipe.study is not None:
        for member in phases.members(recipe):
            _brimful("run", *words, "--only", member.folder.name)
    _brimful("run", *words)
    folder = phases.folder_of(recipe)
    is_table = (folder / STUDY_FILE).exists()
    values = _compared(recipe, folder) if is_table else _scored(words, folder, options.gpt2)
    print(write_record(RECORDS.get(recipe.name, f"learn-{recipe.name}"), values))


def _brimful(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "brimful", *words], check=False)
    if done.returncode:  # it said why
        sys.exit(done.returncode)


def _compared(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """What a study or a chain found, without this machine's folders, and what its means hide."""
    found, values = read_json(folder / STUDY_FILE), recipe.model_dump(mode="json")
    values["data"]["path"] = Path(str(values["data"]["path"])).name
    values["evaluation"]["data"] = {}
    runs = [path.parent for path in sorted(folder.glob("*/scores.json"))]
    return {
        "recipe": values,
        "examples": read_json(runs[-1] / "data.json")["splits"],
        **{key: found[key] for key in ("comparison", "left_out", "what", "rounds") if key in found},
        "runs": {run.name: _of_run(run) for run in runs},
    }


def _of_run(run: Path) -> dict[str, Any]:
    """A run's loss, gradient norms before clipping after the warm-up, and what was found inside its
    layers.
    """
    scores, path = read_json(run / "scores.json"), run / "metrics.jsonl"
    steps = [each for each in read_journal(path) if each["kind"] == "step"] if path.exists() else []
    norms = sorted(each["grad_norm"] for each in steps[len(steps) // 5 :])
    spread = (
        {"median": statistics.median(norms), "min": norms[0], "max": norms[-1]} if norms else {}
    )
    loss = scores.get("validation", {}).get("loss")
    return {"loss": loss, "gradient_norm": spread, "layers": scores.get("layers")}


def _scored(words: list[str], run: Path, gpt2: Path | None) -> dict[str, Any]:
    """What one run took and learned; every token of the validation split is scored once, in windows
    of the training length.
    """
    _brimful("evaluate", str(run))
    scores, plan, data = (read_json(run / f"{name}.json") for name in ("scores", "plan", "data"))
    records = list(read_journal(run / "metrics.jsonl"))
    steps = [each for each in records if each["kind"] == "step"]
    return {
        "recipe": words[0],
        "overrides": [word for word in words[1:] if not word.startswith("data.path")],
        "parameters": plan["parameters"],
        "plan": {
            **{choice["name"]: choice["value"] for choice in plan["choices"]},
            "threads": plan["threads"],
        },
        "predicted_step_time_s": plan["predicted"].get("step_time_s"),
        "median_step_time_s": statistics.median(each["step_time_s"] for each in steps),
        "updates": max(each["step"] for each in steps),
        "seconds_in_all": sum(each["seconds"] for each in records if each["kind"] == "end"),
        "train_tokens_seen": max(each["tokens"] for each in steps),
        "data": data["splits"],
        "tokenizer": data["tokenizer"],
        "scores": scores,
        **({"per_gpt2_token": per_gpt2_token(run, gpt2, scores["validation"])} if gpt2 else {}),
    }


def per_gpt2_token(run_folder: Path, bpe: Path, score: dict[str, Any]) -> dict[str, float]:
    """The same nats per token of GPT-2's tokenizer, of the same held-out text: what others report.

    Args:
        bpe: Folder with encoder.json and vocab.bpe.
        score: Of the validation split.
    """
    tokenizer = ByteLevelBPETokenizer(str(bpe / "encoder.json"), str(bpe / "vocab.bpe"))
    run = finished_run(run_folder, Console())
    split = run.data.splits["validation"]
    ends = [int(offset) for offset in split.document_offsets]
    documents = [split.tokens_N[start:end].astype(int).tolist() for start, end in pairwise(ends)]
    plain = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    text = [run.loaded.tokenizer.decode(ids, **plain) for ids in documents]
    count = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(text))
    num_bytes = sum(len(document.encode()) for document in text)
    perplexity = math.exp(score["bits_per_byte"] * math.log(2) * num_bytes / count)
    return {"tokens": count, "bytes": num_bytes, "perplexity": perplexity}


def _python_instructions(packed: Path) -> Path:
    """Write the instructions whose answer is a Python program into the runs folder."""
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


if __name__ == "__main__":
    main()
