"""Thirty hub ids as people type them, planned without a network: is each answered, with which sizes,
and in how many CPU seconds of a fresh process?

    python benchmarks/catalog_ids.py [--answered FILE] [--cpu-limit SECONDS]

Each is tuned with adapters (`brimful plan lora model=ID`) on an H200, where a base of more than 20
billion parameters, or one that is packed so, is in 4 bits. Every plan begins with an empty cache:
recordings that ship are used, others are made. With --answered, rows that an earlier run printed to
FILE are kept.
"""

import json
import os
import statistics
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before its library is imported

from brimful.model import catalog
from model_types import DEVICE, _ask, rows_and_limit
from record import write_record

IDS = [
    "Qwen/Qwen3.5-4B",
    "unsloth/Qwen3.5-2B",
    "qwen/qwen3.5-35b-a3b",
    "google/gemma-4-E4B-it",
    "unsloth/gemma-4-31B-it-unsloth-bnb-4bit",
    "openai/gpt-oss-20b",
    "unsloth/gpt-oss-20b-unsloth-bnb-4bit",
    "HuggingFaceTB/SmolLM3-3B",
    "Qwen/Qwen3-4B-Instruct-2507",
    "unsloth/Qwen3-4B-Instruct-2507-bnb-4bit",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "unsloth/DeepSeek-R1-Distill-Llama-8B",
    "Qwen/Qwen2.5-Coder-7B-Instruct",
    "Qwen/Qwen2.5-Coder-1.5B",
    "microsoft/Phi-3.5-mini-instruct",
    "mistralai/Mistral-Small-24B-Instruct-2501",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "google/gemma-3n-E4B-it",
    "LiquidAI/LFM2-1.2B",
    "LiquidAI/LFM2-8B-A1B",
    "zai-org/GLM-4.7-Flash",
    "THUDM/GLM-4-9B-0414",
    "unsloth/Llama-3.2-1B-Instruct",
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",
    "NousResearch/Meta-Llama-3-8B",
    "unsloth/mistral-7b-v0.3-bnb-4bit",
    "google/gemma-3-270m-it",
    "microsoft/phi-4",
]
LARGE = 20_000_000_000


def main() -> None:
    """Plan, print and record."""
    known, limit_s = rows_and_limit(__doc__, 120)
    results = []
    for name in IDS:
        row = catalog.find(name)
        words = ["lora", f"model={name}", "--on", DEVICE]
        if "bnb-4bit" in name or (row is not None and row.parameters > LARGE):
            words.insert(2, "quantize=nf4")
        told = known.get(name)
        if told is None:
            with tempfile.TemporaryDirectory() as folder:
                told = {
                    "type": name,
                    "row": row and row.name,
                    "parameters": row and row.parameters,
                    "words": words[2:-2],
                    **_ask(words, Path(folder), limit_s),
                }
        results.append(told)
        print(json.dumps(told), flush=True)
    times_s = [each["cpu_s"] for each in results if "verdict" in each]
    about = {
        "ids": len(results),
        "planned": len(times_s),
        "median_cpu_s": statistics.median(times_s),
        "most_cpu_s": max(times_s),
    }
    print(json.dumps(about))
    print(write_record("catalog_ids", {"summary": about, "ids": results}))


if __name__ == "__main__":
    main()
