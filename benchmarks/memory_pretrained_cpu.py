"""Peak memory of tuning published and equally large models on this CPU, beside what was planned.

    python benchmarks/memory_pretrained_cpu.py --model FOLDER --encoder FOLDER --data FOLDER
        [--kinds code,maths] [--work FOLDER] [--only WORDS]

Every run is a real `brimful train` of two steps (six of `lora` as shipped) in a process of its own,
or after another run in the same process. Predicted is the plan that the run printed before it loaded
the model; measured is what its journal has (`brimful.hardware.process_memory`). Nothing is read from
earlier records.

Rows are of three kinds (`tuning_rows.py`), whose lengths differ in other ways. On records of rows
of code, and of others that are not kept (commits 867a2f7 and fe495df), the share was chosen that a
heap loses between passes of many lengths. The first two runs on rows of maths showed that peft was
imported after planning. Nothing was chosen by the rows of translation.

Args: FOLDER of a causal model with a tokenizer, of an encoder, and of the data sets. Models of
other sizes and families are made in `--work`, with random weights and the causal model's tokenizer.
Results are kept there too, so that a second call measures only what is missing; a changed planner
or trainer needs an empty folder. What is not measured yet is left out of the record, and counted.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from record import write_record
from tuning_rows import KINDS, write_rows

MOST_ERROR, LEAST_INSIDE = 0.06, 13 / 15
"""Targets: median error, share inside the predicted interval."""
STEPS = ("training.epochs=null", "training.steps=2", "evaluation.max_sequences=2")
SHORT = ("sequence_length=256", "batch.sequences=4", "plan.micro_batch=2")
COMPUTES = ("plan.recompute=false", "plan.compile=false")


@dataclass(frozen=True)
class Size:
    """A model made with random weights."""

    model: type[PreTrainedModel]
    config: PretrainedConfig
    dtype: torch.dtype


def _llama(hidden: int, layers: int, inner: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 49_152,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
    }


SIZES = {
    "qwen-180m": Size(Qwen2ForCausalLM, Qwen2Config(**_llama(768, 18, 2304, 12)), torch.float32),
    "qwen-360m": Size(Qwen2ForCausalLM, Qwen2Config(**_llama(1024, 26, 2816, 16)), torch.bfloat16),
    "llama-490m": Size(LlamaForCausalLM, LlamaConfig(**_llama(1152, 28, 3584, 18)), torch.bfloat16),
    "gpt2-124m": Size(
        GPT2LMHeadModel,
        GPT2Config(vocab_size=49_152, n_positions=1024, bos_token_id=1, eos_token_id=2),
        torch.float32,
    ),
}
"""By name: about as many parameters."""


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        model: "causal" or "encoder" as given, or a name in SIZES.
        recipe: A shipped recipe.
        changes: To the recipe.
        before: Name of the run that comes before it in the same process; "" for none.
    """

    model: str
    recipe: str
    changes: tuple[str, ...] = ()
    before: str = ""


CHILD = """
import json, sys
from brimful.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["brimful", *words]
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
"""
"""Runs commands one after the other in one process, as a notebook or a chain does."""
GPT2_ADAPTER = "adapter.targets=[c_attn]"
SEEN = {"code", "maths"}
"""Kinds of rows that were looked at."""
CASES: Mapping[str, Case] = {
    "LoRA": Case("causal", "code-lora", SHORT),
    "QLoRA": Case("causal", "code-qlora", SHORT),
    "full": Case("causal", "code-full", SHORT),
    "LoRA in fp32": Case("causal", "code-lora", (*SHORT, "plan.precision=fp32")),
    "LoRA after full": Case("causal", "code-lora", SHORT, "full"),
    "full after LoRA": Case("causal", "code-full", SHORT, "LoRA"),
    "LoRA, 1 x 512": Case(
        "causal", "code-lora", ("sequence_length=512", "batch.sequences=2", "plan.micro_batch=1")
    ),
    "classifier": Case("encoder", "moderation", ("batch.sequences=32", "plan.micro_batch=16")),
    "classifier after LoRA": Case(
        "encoder", "moderation", ("batch.sequences=32", "plan.micro_batch=16"), "LoRA"
    ),
    "LoRA of 360M": Case("qwen-360m", "code-lora", SHORT),
    "full of 180M": Case("qwen-180m", "code-full", SHORT),
    "LoRA of 490M": Case("llama-490m", "code-lora", SHORT),
    "QLoRA of 490M after LoRA of 360M": Case("llama-490m", "code-qlora", SHORT, "LoRA of 360M"),
    "full of GPT-2": Case("gpt2-124m", "code-full", SHORT),
    "LoRA of GPT-2": Case("gpt2-124m", "code-lora", (*SHORT, GPT2_ADAPTER)),
    "lora as shipped": Case("causal", "lora", ("training.steps=6",)),
}

ALL_THREADS = {"LoRA", "LoRA in fp32", "classifier", "lora as shipped"}
"""Run on all cores; the others on one."""


def make_model(name: str, folder: Path, tokenizer: Path) -> Path:
    """Return the folder of a model of SIZES, made if it is not there."""
    made = folder / name
    if not (made / "config.json").exists():
        size = SIZES[name]
        torch.manual_seed(0)
        size.model(size.config).to(size.dtype).save_pretrained(made)
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(made)
    return made


def command(kind: str, name: str, options: argparse.Namespace) -> list[str]:
    """Return the words of a case's `brimful train` on a kind of rows."""
    case = CASES[name]
    if case.model in SIZES:
        model = make_model(case.model, options.work, options.model)
    else:
        model = options.encoder if case.model == "encoder" else options.model
    pairs, texts = write_rows(kind, options.data, options.work)
    data = [f"data.path={pairs}", "sample.tokens=1"]
    if case.model == "encoder":
        data = [f"data.path={texts}", "labels.preprocess=[nfc]", "sequence_length=128"]
    elif case.recipe != "lora":  # which plans how it computes by itself
        data += COMPUTES
    if name not in ALL_THREADS:
        data.append("plan.threads=1")
    return ["train", case.recipe, f"model={model}", *data, *STEPS, *case.changes]


def run(kind: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a case on a kind of rows in a process of its own; return its row."""
    case, work = CASES[name], options.work.resolve()
    words = [
        [*command(kind, each, options), f"run.name=run-{index}"]
        for index, each in enumerate([case.before, name] if case.before else [name])
    ]
    runs = work / "runs" / kind / name.replace(" ", "-").replace(",", "")
    words = [[*each, f"run.folder={runs}", "--fresh"] for each in words]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(words)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{kind}, {name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {"rows": kind, **row_of(name, runs / f"run-{len(words) - 1}")}


def row_of(name: str, folder: Path) -> dict[str, Any]:
    """Return predicted and measured memory of a run folder, in MiB."""
    from brimful.runs.folder import read_run
    from brimful.runs.measurements import measured

    read = read_run(folder)
    interval = read.predicted_interval("peak_memory_bytes")
    plan, peak = read.plan, measured(read)["peak_memory_bytes"]
    predicted = read.predicted("peak_memory_bytes")
    assert plan is not None
    assert interval is not None
    assert predicted is not None
    return {
        "configuration": name,
        "model": CASES[name].model,
        "parameters": plan.parameters,
        "precision": plan.precision,
        "in_a_fresh_process": not CASES[name].before,
        "predicted_mib": round(predicted / 2**20),
        "interval_mib": [round(end / 2**20) for end in interval],
        "measured_mib": round(peak / 2**20),
        "error_percent": round(100 * (predicted / peak - 1), 1),
        "inside": bool(interval[0] <= peak <= interval[1]),
        "terms_mib": {key: round(value / 2**20) for key, value in plan.memory_terms.items()},
    }


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return count, median error and share inside the interval."""
    errors = [abs(row["error_percent"]) for row in rows]
    return {
        "n": len(rows),
        "median_error_percent": round(float(np.median(errors)), 1),
        "largest_error_percent": max(errors),
        "inside": sum(row["inside"] for row in rows),
        "measured_above_interval": sum(
            row["measured_mib"] > row["interval_mib"][1] for row in rows
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--work", type=Path, default=Path("memory-pretrained"))
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / "rows.json"
    rows = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    wanted = [(kind, name) for kind in options.kinds.split(",") if kind for name in CASES]
    for kind, name in wanted:
        key = f"{kind}: {name}"
        if key not in rows and options.only in name:
            rows[key] = run(kind, name, options)
            kept.write_text(json.dumps(rows), encoding="utf-8")
            print(json.dumps(rows[key]), flush=True)
    every = list(rows.values())
    by_kind = {
        kind: summary_of(measured)
        for kind in KINDS
        if (measured := [row for row in every if row["rows"] == kind])
    }
    held_out = [row for row in every if row["rows"] not in SEEN]
    values = {
        "not_measured": len(KINDS) * len(CASES) - len(every),
        "all": summary_of(every),
        "by_rows": by_kind,
        **({"held_out": summary_of(held_out)} if held_out else {}),
        "configurations": every,
    }
    if not options.only:
        write_record("memory_pretrained_cpu", values)
    print(json.dumps({"all": values["all"], **by_kind}, indent=2))
    missed = [
        kind
        for kind, found in by_kind.items()
        if found["median_error_percent"] > 100 * MOST_ERROR
        or found["inside"] < LEAST_INSIDE * found["n"]
    ]
    if missed:
        sys.exit(f"the targets are not met on rows of {', '.join(missed)}")


if __name__ == "__main__":
    main()
