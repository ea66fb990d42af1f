"""Twenty questions about whole jobs, asked by command, with verdicts that were worked out by hand.

    python benchmarks/job_questions.py [--no-record]

Each is asked as `brimful plan RECIPE CHANGES --on DEVICE --json`, and is right where the verdict and
the phase that decides it are those written here; `by_hand` says how they follow. Parameters: SmolLM2
0.36B and 1.7B, Llama 3.1 8.03B and 70.6B, Gemma 2 2.61B; a GiB is 1.074e9 bytes. A model that only
writes takes 2 bytes a parameter, full tuning 16. Recordings that are not there are made, so the first
time takes minutes.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from record import write_record

TEACHER = "rft.teacher=meta-llama/Llama-3.1-{}-Instruct"


@dataclass(frozen=True)
class Question:
    """What is asked, and what the answer has to be.

    Attributes:
        command: What stands behind `brimful plan`, the device last.
        verdict: Of the whole job; with a budget, of that.
        phase: That decides it; empty: not said by hand.
        by_hand: How that follows.
    """

    command: tuple[str, ...]
    verdict: str
    phase: str
    by_hand: str


def _ask(*command: str, verdict: str, phase: str = "", why: str) -> Question:
    return Question(command, verdict, phase, why)


NO, MAYBE, YES = "does not fit", "uncertain", "fits"
A100, A100_80, T4, L4 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA L4"
RTX_3060, H200, H100 = "NVIDIA GeForce RTX 3060", "NVIDIA H200", "NVIDIA H100 80GB HBM3"
QUESTIONS = (
    _ask(
        "unit-rft",
        TEACHER.format("70B"),
        A100,
        verdict=NO,
        phase="sampling",
        why="the teacher's weights are 131.4 GiB of 39.5",
    ),
    _ask(
        "unit-rft",
        TEACHER.format("70B"),
        f"8 x {A100}",
        verdict=NO,
        phase="sampling",
        why="each device holds the whole teacher",
    ),
    _ask(
        "unit-rft",
        TEACHER.format("70B"),
        H200,
        verdict=MAYBE,
        phase="sampling",
        why="131.4 GiB of 139.8 leave 6 %, less than a tenth",
    ),
    _ask(
        "unit-rft",
        TEACHER.format("8B"),
        T4,
        verdict=NO,
        phase="sampling",
        why="15.0 GiB of 14.6",
    ),
    _ask(
        "unit-rft",
        TEACHER.format("8B"),
        RTX_3060,
        verdict=NO,
        phase="sampling",
        why="15.0 GiB of 11.8",
    ),
    _ask(
        "unit-rft",
        TEACHER.format("8B"),
        L4,
        verdict=YES,
        why="15.0 GiB of 22; the training of 0.36B takes 8",
    ),
    _ask(
        "unit-rft",
        RTX_3060,
        verdict=YES,
        why="the teacher of 1.7B takes 3.2 GiB; rows at once are what fits beside it",
    ),
    _ask("unit-rft", A100, verdict=YES, why="training 8 GiB, teacher 3.2 GiB of 39.5"),
    _ask("unit-rft", f"2 x {A100}", verdict=YES, why="the same on each of both"),
    _ask(
        "unit-rft",
        A100,
        "--budget",
        "1m",
        verdict=NO,
        phase="budget",
        why="training alone takes a minute, and 60,000 answers of 51 tokens at 20,000 a second 150 s",
    ),
    _ask(
        "unit-rft",
        A100,
        "--budget",
        "12h",
        verdict=YES,
        phase="budget",
        why="ten times slower than that is half an hour",
    ),
    _ask(
        "code-rank-study",
        A100,
        verdict=NO,
        phase="training of full",
        why="16 bytes x 2.61B are 38.9 GiB before activations",
    ),
    _ask(
        "code-rank-study",
        H100,
        verdict=YES,
        why="48 GiB for full tuning; LoRA holds 4.9 GiB of weights",
    ),
    _ask(
        "code-rank-study",
        L4,
        verdict=NO,
        phase="training of full",
        why="38.9 GiB before activations, of 22",
    ),
    _ask("code-full", A100, verdict=NO, phase="training", why="as the variant full"),
    _ask("code-lora", A100, verdict=YES, why="4.9 GiB of weights, 25 of activations at most"),
    _ask(
        "code-smollm2-study",
        T4,
        verdict=YES,
        why="16 bytes x 0.135B are 2 GiB for full tuning",
    ),
    _ask(
        "code-smollm2-study",
        "training.epochs=null",
        "training.steps=25",
        A100_80,
        "--budget",
        "30d",
        verdict=YES,
        phase="budget",
        why="five runs over 400 functions are minutes",
    ),
    _ask("okadfa-ablation", T4, verdict=YES, why="1.3M parameters"),
    _ask(
        "okadfa-ablation",
        T4,
        "--budget",
        "10s",
        verdict=NO,
        phase="budget",
        why="30 runs start in 0.3 s each at least, and have 400 steps",
    ),
)


def main() -> None:
    """Ask all, print what is wrong, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    rows, num_right = [], 0
    for question in QUESTIONS:
        verdict, phase = _answer(question)
        right = verdict == question.verdict and (not question.phase or phase == question.phase)
        num_right += right
        told = " ".join(question.command)
        print(f"{'right' if right else 'WRONG'}  {told}: {verdict}, {phase}", flush=True)
        rows.append({**asdict(question), "answered": [verdict, phase], "is_right": right})
    print(f"{num_right} of {len(rows)} right")
    if not options.no_record:
        print(f"record: {write_record('job_questions', {'questions': rows})}")


def _answer(question: Question) -> tuple[str, str]:
    """Return the verdict of the command and the phase that decides it."""
    place = next((at for at, word in enumerate(question.command) if word.startswith("--")), None)
    words, options = question.command[:place], question.command[len(question.command[:place]) :]
    command = ["brimful", "plan", *words[:-1], "--on", words[-1], "--json", *options]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        raise SystemExit(done.stderr)
    values: dict[str, Any] = json.loads(done.stdout)
    (device,) = values["devices"]
    if "budget" in values:
        (check,) = values["budget"].values()
        return str(check["verdict"]), "budget"
    job = device.get("job", {"worst_phase": "training"})
    return str(device["verdict"]), str(job["worst_phase"])


if __name__ == "__main__":
    main()
