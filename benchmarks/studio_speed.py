"""How long *Will it fit?* takes: the first answer for a model and a method with nothing cached,
then answers to changed questions.

python benchmarks/studio_speed.py [--changes N]

Each case runs in a process of its own with an empty cache folder. Every changed question has not
been asked before. CPU seconds are those of the process; wall seconds depend on what else the
machine does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from brimful.faces.studio.fit import assess
from brimful.faces.studio.fit_request import FitRequest
from brimful.hardware import catalog
from record import summary, write_record

CASES = {
    "8B LoRA": FitRequest("meta-llama/Llama-3.1-8B", "lora"),
    "gpt-124m, pretrained": FitRequest("gpt-124m"),
    "70B QLoRA": FitRequest("meta-llama/Llama-3.1-70B", "qlora"),
    "code-lora (Gemma 2)": FitRequest("code-lora"),
}
ON_FEW_DEVICES = {"code-lora (Gemma 2)"}
"""Not asked for every NVIDIA device, which traces more steps: the first answer alone takes a minute
or two.
"""
LENGTHS = {"gpt-124m, pretrained": (512, 256, 896, 640, 768)}
"""The others' are multiples of these."""
OTHER_DEVICES = (
    "NVIDIA A10G",
    "NVIDIA A40",
    "NVIDIA L40S",
    "NVIDIA H20",
    "NVIDIA RTX A6000",
    "NVIDIA GeForce RTX 5090",
)
TARGET_CPU_S = 0.3
"""Of every answer after the first."""


def changed(name: str, question: FitRequest, count: int) -> Iterator[tuple[str, FitRequest]]:
    """Questions that differ from the first in one thing each."""
    for number in range(count):
        if question.method in {"lora", "qlora"}:
            yield "rank", replace(question, rank=(8, 24, 32, 48, 64)[number])
        yield (
            "sequence length",
            replace(
                question, sequence_length=LENGTHS.get(name, (1024, 512, 4096, 1536, 3072))[number]
            ),
        )
        yield "effective batch", replace(question, effective_batch=(24, 32, 48, 64, 20)[number])
        yield (
            "devices",
            replace(
                question, devices=(*question.devices[: number + 1], *OTHER_DEVICES[: 6 - number])
            ),
        )
        yield "tokens", replace(question, tokens=(number + 2) * 10**8)


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--changes", type=int, default=3, choices=range(1, 6))
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(_measured(arguments.case, arguments.changes)))
        return
    load = os.getloadavg()[0]
    results = {name: _in_own_process(name, arguments.changes) for name in CASES}
    values = {
        "changes": arguments.changes,
        "cores": os.cpu_count(),
        "load_average_before": load,
        "target_cpu_s": TARGET_CPU_S,
        "results": results,
    }
    print(write_record("studio_speed", values))


def _in_own_process(name: str, changes: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name, "--changes", str(changes)]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"BRIMFUL_CACHE": folder, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    for kind, spread in result["changed"].items():
        print(
            f"{name}, {kind}: {spread['cpu_s']['median']:.2f} s CPU ({spread['cpu_s']['max']:.2f}"
            " at most)",
            flush=True,
        )
    return result


def _measured(name: str, changes: int) -> dict[str, Any]:
    question = CASES[name]
    first = _asked(question)
    times: dict[str, list[tuple[float, float]]] = {}
    for kind, other in changed(name, question, changes):
        times.setdefault(kind, []).append(_asked(other))
    spreads = {
        kind: {
            "cpu_s": summary([cpu for cpu, _ in each]),
            "wall_s": summary([wall for _, wall in each]),
        }
        for kind, each in times.items()
    }
    result = {"devices": len(question.devices), "first": _named(first), "changed": spreads}
    if name in ON_FEW_DEVICES:
        return result
    nvidia = tuple(
        device for device in catalog.names() if device.startswith(("NVIDIA", "Tesla", "Quadro"))
    )
    everywhere = {"first": _named(_asked(replace(question, devices=nvidia)))}
    if "rank" in times:
        everywhere["another rank"] = _named(_asked(replace(question, devices=nvidia, rank=12)))
    everywhere["devices"] = len(nvidia)  # type: ignore[assignment]
    return result | {"every NVIDIA device": everywhere}


def _asked(question: FitRequest) -> tuple[float, float]:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    assess(question)
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


def _named(times: tuple[float, float]) -> dict[str, float]:
    return {"cpu_s": times[0], "wall_s": times[1]}


if __name__ == "__main__":
    main()
