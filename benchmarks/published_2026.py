"""Memory that runs of models of 2025 and 2026 published, beside the plan of the same settings.

    python benchmarks/published_2026.py [--answered FILE] [--cpu-limit SECONDS]

The rows were listed before any of them was planned: every notebook of unslothai/notebooks at COMMIT
that keeps its output, tunes text of a model of these years with adapters by supervised learning and
is in the catalog. Left out are those of pictures, sound, embeddings and rewards, and those that
train with simulated quantisation. Memory is the peak that torch reserved, GiB.

The runs differ from what brimful would run, in ways that no setting takes back: Unsloth's own
kernels and activations in the host's memory; texts are padded to the longest of a pass, and their
lengths are not told, where the plan counts full rows of `length` tokens; 4-bit copies of Unsloth's
leave some layers in 16 bits, and those of gpt-oss pack the experts; notebooks of Gemma 4, Gemma 3n
and Qwen 3.5 load vision and sound, too. So errors stand as they come.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from model_types import _ask, rows_and_limit
from record import write_record

COMMIT = "bdda2efc7ad5ae129ea63cd2065d23c391406283"
T4, L4 = "Tesla T4", "L4"
A40, A80 = "A100-SXM4-40GB", "A100-SXM4-80GB"


class Row(NamedTuple):
    """A published run: `reserved_gib` is torch's largest, `loaded_gib` that before training."""

    notebook: str
    model: str
    device: str
    bits: int
    rank: int
    micro_batch: int
    length: int
    loaded_gib: float
    reserved_gib: float


ROWS = (
    Row("Gemma4_(E2B)-Text", "unsloth/gemma-4-E2B-it", T4, 16, 8, 1, 1024, 10.098, 10.836),
    Row("Gemma4_(E4B)-Text", "unsloth/gemma-4-E4B-it", T4, 4, 8, 1, 1024, 9.891, 10.715),
    Row("Gemma4_(26B_A4B)-Text", "unsloth/gemma-4-26B-A4B-it", A80, 4, 8, 1, 8192, 46.416, 48.988),
    Row("Gemma4_(31B)-Text", "unsloth/gemma-4-31B-it", A40, 4, 8, 1, 8192, 18.57, 21.43),
    Row(
        "Gemma3N_(4B)-Conversational", "unsloth/gemma-3n-E4B-it", T4, 4, 8, 1, 1024, 12.592, 12.592
    ),
    Row("Gemma3_(270M)", "unsloth/gemma-3-270m-it", T4, 16, 128, 8, 2048, 0.832, 4.268),
    Row("Gemma3_(4B)", "unsloth/gemma-3-4b-it", T4, 4, 8, 2, 2048, 4.283, 13.561),
    Row(
        "Gemma3_(27B)_A100-Conversational",
        "unsloth/gemma-3-27b-it",
        A40,
        4,
        8,
        2,
        2048,
        19.074,
        25.791,
    ),
    Row(
        "LFM2.5_(1.2B)-Conversational",
        "LiquidAI/LFM2.5-1.2B-Instruct",
        L4,
        16,
        16,
        2,
        2048,
        2.23,
        3.453,
    ),
    Row("Liquid_LFM2_(1.2B)-Conversational", "unsloth/LFM2-1.2B", T4, 16, 16, 2, 2048, 2.268, 2.85),
    Row("Qwen3_(14B)-Alpaca", "unsloth/Qwen3-14B-Base", T4, 4, 16, 2, 2048, 11.898, 12.949),
    Row(
        "Qwen3_(14B)-Reasoning-Conversational",
        "unsloth/Qwen3-14B",
        T4,
        4,
        32,
        2,
        2048,
        11.898,
        14.508,
    ),
    Row(
        "Qwen3_(32B)_A100-Reasoning-Conversational",
        "unsloth/Qwen3-32B",
        A40,
        4,
        32,
        2,
        2048,
        19.121,
        24.529,
    ),
    Row("Qwen_3_5_27B_A100(80GB)", "unsloth/Qwen3.5-27B", A80, 16, 8, 4, 2048, 51.156, 64.998),
    Row("gpt-oss-(20B)-Fine-tuning", "unsloth/gpt-oss-20b", T4, 4, 8, 1, 1024, 12.811, 12.975),
    Row(
        "gpt-oss-(120B)_A100-Fine-tuning",
        "unsloth/gpt-oss-120b",
        A80,
        4,
        16,
        4,
        4096,
        59.27,
        67.836,
    ),
    Row("GLM_Flash_A100(80GB)", "zai-org/GLM-4.7-Flash", A80, 16, 8, 4, 2048, 57.787, 65.738),
    Row(
        "Nemotron-3-Nano-30B-A3B_A100",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        A80,
        16,
        8,
        4,
        2048,
        59.752,
        76.904,
    ),
)


def main() -> None:
    """Plan, compare and record."""
    known, limit_s = rows_and_limit(__doc__, 240)
    results = []
    for row in ROWS:
        results.append(known.get(row.notebook) or planned(row, limit_s))
        print(json.dumps(results[-1]), flush=True)
    errors = [each["error"] for each in results if "error" in each]
    about = {
        "rows": len(results),
        "planned": len(errors),
        "median_absolute_error": round(statistics.median(map(abs, errors)), 3),
        "too_small": sum(error < 0 for error in errors),
    }
    print(json.dumps(about))
    print(write_record("published_2026", {"commit": COMMIT, "summary": about, "rows": results}))


def planned(row: Row, cpu_limit_s: int) -> dict[str, Any]:
    """A row with its plan."""
    words = [
        "lora",
        f"model={row.model}",
        f"adapter.rank={row.rank}",
        f"sequence_length={row.length}",
        f"plan.micro_batch={row.micro_batch}",
        "optimizer.kind=adamw_8bit",
        "plan.recompute=true",
        "plan.compile=false",
        *(["quantize=nf4"] if row.bits == 4 else []),
        "--on",
        row.device,
    ]
    about = {"type": row.notebook, **row._asdict()}
    with tempfile.TemporaryDirectory() as folder:
        told = _ask(words, Path(folder), cpu_limit_s)
    if "peak_bytes" in told:
        told["plan_gib"] = round(told.pop("peak_bytes") / 2**30, 3)
        told["error"] = round(told["plan_gib"] / row.reserved_gib - 1, 3)
    return {**about, **told}


if __name__ == "__main__":
    main()
