"""Does `brimful plan` answer where torch, transformers and peft are not installed? A fresh
environment with brimful's other dependencies, and the same questions asked there and here.

`python benchmarks/without_torch.py` (a few minutes: it installs some fifty packages). A question for
each model type whose recordings come with brimful and each method, and some of shipped recipes, each
with an empty cache; answers must be the same. What has to be recorded must be refused with exit code
2 there.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import summary, write_record

ROOT = Path(__file__).resolve().parents[1]
ABSENT = {"torch", "transformers", "peft"}
MODELS = {
    "llama": "meta-llama/Llama-3.1-8B",
    "llama, tied": "HuggingFaceTB/SmolLM2-135M",
    "mistral": "mistralai/Mistral-7B-v0.1",
    "qwen2": "Qwen/Qwen2.5-7B",
    "qwen3": "Qwen/Qwen3-8B",
    "gemma2": "google/gemma-2-9b",
}
METHODS = {
    "LoRA": ["adapter.rank=16"],
    "QLoRA": ["adapter.rank=16", "quantize=nf4"],
    "full": [],
}
REFUSED = ["plan", "quickstart", "model=EleutherAI/pythia-70m", "tokenizer=null", "--on", "T4"]
COUNTED = """
import os, sys
from brimful.cli import main
try:
    main()
finally:
    found = sorted({"torch", "transformers", "peft"} & sys.modules.keys())
    with open("/proc/self/status") as file:
        peak_kb = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    print("\\nCOUNTED", sum(os.times()[:2]), peak_kb, *found, file=sys.stderr)
"""


def questions() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the words of each question."""
    for kind, model in MODELS.items():
        for length in (2048, 1000):
            for method, settings in METHODS.items():
                words = [f"model={model}", "tokenizer=null", f"sequence_length={length}", *settings]
                on = ["batch.sequences=16", "--on", "a100-sxm4-40gb"]
                yield f"{kind}, {method}, {length} tokens", ["plan", "quickstart", *words, *on]
    for recipe in ("quickstart", "gpt-124m", "tiny-gpt", "lora", "code-smollm2"):
        yield f"recipe {recipe}", ["plan", recipe, "--on", "T4"]


def environment(folder: Path) -> Path:
    """Return the Python of a new environment with brimful and without ABSENT."""
    source = folder / "source"
    left_out = shutil.ignore_patterns(
        ".*", "tests", "benchmarks", "docs", "runs", "build", "__pycache__"
    )
    shutil.copytree(ROOT, source, ignore=left_out)
    subprocess.run([sys.executable, "-m", "venv", folder / "machine"], check=True)
    python = folder / "machine" / "bin" / "python"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    others = [each for each in wanted if re.split(r"\W", each)[0] not in ABSENT]
    for words in (others, ["--no-deps", str(source)]):
        subprocess.run([python, "-m", "pip", "install", "--quiet", *words], check=True)
    return python


def asked(python: Path, words: list[str], folder: Path) -> dict[str, Any]:
    """Ask with an empty cache; return exit code, answer, CPU seconds, peak memory and which of
    ABSENT were imported.
    """
    left = {key: os.environ[key] for key in os.environ if key != "PYTHONPATH"}
    if python == Path(sys.executable):
        left["PYTHONPATH"] = str(ROOT / "src")
    with tempfile.TemporaryDirectory() as cache:
        ended = subprocess.run(
            [python, "-c", COUNTED, *words, "--json"],
            env=left | {"BRIMFUL_CACHE": cache, "HF_HUB_OFFLINE": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    said, _, counted = ended.stderr.rpartition("COUNTED")
    cpu_s, peak_kb, *imported = counted.split()
    return {
        "exit_code": ended.returncode,
        "answer": json.loads(ended.stdout) if ended.stdout.strip() else said.strip(),
        "cpu_s": float(cpu_s),
        "peak_bytes": 1024 * int(peak_kb),
        "imported": imported,
    }


def main() -> None:
    """Ask there and here, compare, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python, rows = environment(folder), []
        for name, words in questions():
            there, here = (asked(each, words, folder) for each in (python, Path(sys.executable)))
            same = there["answer"] == here["answer"] and there["exit_code"] == here["exit_code"]
            good = same and there["exit_code"] in (0, 1)
            row = {"question": name, "equal": good, **there, "imported_here": here["imported"]}
            if good:
                del row["answer"]
            rows.append(row)
            print(f"{name}: {'equal' if good else row['answer']}", flush=True)
        refused = asked(python, REFUSED, folder)
    good = all(row["equal"] for row in rows) and refused["exit_code"] == 2
    values = {
        "without": sorted(ABSENT),
        "questions": len(rows),
        "equal": sum(row["equal"] for row in rows),
        "peak_bytes": summary([row["peak_bytes"] for row in rows]),
        "cpu_s": summary([row["cpu_s"] for row in rows]),
        "what_must_be_recorded": refused,
        "rows": rows,
    }
    print(write_record("without_torch", values))
    sys.exit(not good)


if __name__ == "__main__":
    main()
