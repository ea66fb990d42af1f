"""The first predicted step time on a machine that nothing is known of, beside the measured one:
`python benchmarks/first_prediction_cpu.py --chat-model FOLDER --encoder FOLDER [--only NAME]`.

Every configuration is trained by `brimful train` with an empty cache, as on the first start: what
the plan says before the first step is compared with the median step. With `--busy`, `brimful plan`
is asked with an empty cache while programs of this benchmark keep every core busy, then again, with
what it kept, after they have ended: the first interval has to be wide, the second narrow.

`--only` runs some configurations and replaces their rows in the record.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brimful.base.env import shared_data_folder
from brimful.hardware.contention import core_times, lost_share
from brimful.runs.folder import read_run
from brimful.runs.measurements import steady
from record import RECORDS, commit, write_record

NAME = "first_prediction_cpu"
TARGET = 0.15
STEPS = 60
QUICK = ["evaluation.every=100000", "sample.tokens=4"]
CHAT = ["data.path=PAIRS", "evaluation.tasks=[]", "evaluation.max_examples=4", *QUICK]
SHORT = ["training.epochs=null", "training.steps=8"]
CONFIGURATIONS: Mapping[str, tuple[str, list[str]]] = {
    "quickstart": ("quickstart", [f"training.steps={STEPS}", *QUICK]),
    "gpt 320 x 8, 4 x 512": (
        "quickstart",
        [
            *("training.steps=12", "model.layers=8", "model.width=320", "model.heads=5"),
            *("sequence_length=512", "batch.sequences=4", *QUICK),
        ],
    ),
    "gpt 256 x 6, 16 x 128, fp32, recomputed": (
        "quickstart",
        [
            *("training.steps=20", "model.layers=6", "model.width=256", "model.heads=4"),
            *("sequence_length=128", "batch.sequences=16", "plan.precision=fp32"),
            *("plan.recompute=true", *QUICK),
        ],
    ),
    "tiny-gpt's model, 8 x 256": (
        "tiny-gpt",
        [
            *("training.steps=12", "batch.sequences=8", "data.path=builtin:python-docs"),
            *("data.config_name=null", "data.document_start=null", *QUICK),
        ],
    ),
    "tiny-encoder, masked words": ("tiny-encoder", ["training.tokens=80000", *QUICK]),
    "135M chat model, LoRA, 8 x 256": (
        "code-lora",
        ["model=CHAT", "sequence_length=256", "batch.sequences=8", *CHAT, *SHORT],
    ),
    "135M chat model, LoRA, 4 x 768, fp32": (
        "code-lora",
        [
            *("model=CHAT", "sequence_length=768", "batch.sequences=4", "plan.precision=fp32"),
            *(*CHAT, "training.epochs=null", "training.steps=4"),
        ],
    ),
    "135M chat model, all weights, 4 x 128": (
        "code-full",
        ["model=CHAT", "sequence_length=128", "batch.sequences=4", *CHAT, *SHORT],
    ),
    "22M encoder, labels, 16 x 128": (
        "moderation-offline",
        [
            *(
                "model=ENCODER",
                "data.path=SMS",
                "labels.pretrain=as_written",
                "training.epochs=null",
            ),
            *("training.steps=60", *QUICK),
        ],
    ),
}
"""Recipe and overrides by name. PAIRS, SMS, CHAT and ENCODER stand for files and models."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chat-model", type=Path, help="a decoder of 135M parameters")
    parser.add_argument("--encoder", type=Path, help="an encoder of 22M parameters")
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    parser.add_argument("--busy", action="store_true", help="plan on a busy machine instead")
    options = parser.parse_args()
    path = RECORDS / f"{NAME}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = {row["configuration"]: row for row in before.get("configurations", [])}
    busy = {row["configuration"]: row for row in before.get("busy", [])}
    with tempfile.TemporaryDirectory() as folder:
        words = _files(Path(folder), options.chat_model, options.encoder)
        for name, (recipe, overrides) in CONFIGURATIONS.items():
            if options.only not in name:
                continue
            filled = [_filled(word, words) for word in overrides]
            if None in filled:
                print(f"{name}: left out, a file or model that it needs is not given")
                continue
            known = [word for word in filled if word is not None]
            if options.busy:
                busy[name] = {"configuration": name, **plan_while_busy(recipe, known)}
                print(name, json.dumps(busy[name]), flush=True)
            else:
                measured = first_run(recipe, known, Path(folder))
                rows[name] = {"configuration": name, "commit": commit(), **measured}
                print(name, json.dumps(rows[name]), flush=True)
    errors = [abs(row["error_percent"]) for row in rows.values()]
    write_record(
        NAME,
        {
            "configurations": list(rows.values()),
            "median_error_percent": statistics.median(errors) if errors else None,
            "inside": sum(row["inside"] for row in rows.values()),
            "within_target": sum(error <= 100 * TARGET for error in errors),
            "busy": list(busy.values()),
        },
    )
    if errors and statistics.median(errors) > 100 * TARGET:
        sys.exit(f"the median error is above {TARGET:.0%}")


def first_run(recipe: str, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train with an empty cache; return the first prediction beside the median step."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        environment = {
            **os.environ,
            "BRIMFUL_CACHE": f"{own}/cache",
            "BRIMFUL_RUNS": f"{own}/runs",
        }
        before = core_times()
        done = subprocess.run(
            [sys.executable, "-m", "brimful", "train", recipe, *overrides, "run.name=first"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        others = _others(before)
        if done.returncode:
            raise SystemExit(f"{recipe} failed:\n{done.stderr[-3000:]}")
        run = read_run(Path(own) / "runs" / "first")
        if run.plan is None:
            raise SystemExit(f"{recipe} left no plan")
        predicted = run.plan.predicted["step_time_s"]
        times_s = [each.step_time_s for each in steady(run).records if each.step_time_s]
        measured_s = statistics.median(times_s)
        return {
            "predicted_s": round(predicted.value, 4),
            "interval_s": [round(predicted.low, 4), round(predicted.high, 4)],
            "measured_s": round(measured_s, 4),
            "measured_range_s": [round(min(times_s), 4), round(max(times_s), 4)],
            "steps": len(times_s),
            "error_percent": round(100 * (predicted.value / measured_s - 1), 1),
            "inside": predicted.low <= measured_s <= predicted.high,
            "others_share": others,
            "basis": predicted.basis,
            "micro_batches": list(run.plan.micro_batches),
        }


def plan_while_busy(recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the step time that a first plan predicts while every core is busy, and that of a
    second one on the machine at rest.
    """
    with tempfile.TemporaryDirectory() as own:
        environment = {
            **os.environ,
            "BRIMFUL_CACHE": f"{own}/cache",
            "BRIMFUL_RUNS": f"{own}/runs",
        }
        with _busy():
            first = _plan(recipe, overrides, environment)
        time.sleep(1)
        second = _plan(recipe, overrides, environment)
    return {"busy": first, "afterwards": second}


def _plan(recipe: str, overrides: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "brimful", "plan", recipe, *overrides, "--json"],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    plan = json.loads(done.stdout)["devices"][0]["plan"]
    low, high = plan["predicted_interval"]["step_time_s"]
    rates = plan["device"]["dense_flop_per_s"]
    return {
        "predicted_s": round(plan["predicted"]["step_time_s"], 4),
        "interval_s": [round(low, 4), round(high, 4)],
        "high_over_low": round(high / low, 2),
        "bf16_over_fp32": round(rates["bf16"] / rates["fp32"], 2),
        "basis": plan["basis"]["step_time_s"],
    }


@contextmanager
def _busy() -> Iterator[None]:
    """Keep every core busy, with a program of its own each."""
    hog = "while True: sum(range(10_000))"
    programs = [subprocess.Popen([sys.executable, "-c", hog]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _others(before: Any) -> float:
    """Return the share of all cores that other programs than this one's used since then."""
    after = core_times()
    return round(lost_share(before, after), 3)


def _files(folder: Path, chat: Path | None, encoder: Path | None) -> dict[str, str | None]:
    """Return what the words in the overrides stand for."""
    shared = shared_data_folder()
    words = {
        "CHAT": None if chat is None else str(chat.resolve()),
        "ENCODER": None if encoder is None else str(encoder.resolve()),
        "PAIRS": None,
        "SMS": None,
    }
    if shared is not None:
        words["SMS"] = str((shared / "sms_spam" / "SMSSpamCollection").resolve())
        words["PAIRS"] = str(_pairs(shared, folder / "pairs.jsonl"))
    return words


def _pairs(shared: Path, path: Path) -> Path:
    """Write instructions and answers, one JSON object a line; return the file."""
    with gzip.open(shared / "gpteacher_codegen" / "codegen-instruct.json.gz") as file:
        rows = json.load(file)
    lines = [
        json.dumps(
            {
                "prompt": f"{row['instruction']}\n{row['input']}".strip(),
                "completion": row["response"],
            }
        )
        for row in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _filled(override: str, words: Mapping[str, str | None]) -> str | None:
    key, _, value = override.partition("=")
    if value not in words:
        return override
    return None if words[value] is None else f"{key}={words[value]}"


if __name__ == "__main__":
    main()
