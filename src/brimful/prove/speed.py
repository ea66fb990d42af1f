"""How fast a run trains beside the same work without brimful. Speeds decide nothing."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from brimful.base.env import of_a_plain_process
from brimful.planning.plan import Plan
from brimful.prove.plain_training import FIRST_STEPS, LOOP, TRAINER, PlainJob, PlainResult
from brimful.prove.record import HELD, Outcome
from brimful.prove.training import outcome_of
from brimful.prove.workplace import LONGEST_S, TrialFailed, Workplace
from brimful.report.quantities import listed
from brimful.runs.files import MODEL_FOLDER
from brimful.runs.measurements import steady

NAMES = {LOOP: "a plain PyTorch loop", TRAINER: "transformers' Trainer"}


def trains_beside_others(place: Workplace, name: str, recipe: Mapping[str, Any]) -> Outcome:
    """Train a recipe, then a model of the same shape for as many steps in other ways: the same
    tokens a step, precision and choice of compiling, with the plan's micro-batch or, where that
    takes more memory there, a smaller one.

    Raises:
        TrialFailed: a training failed, or no time was measured.
    """
    run = place.run_recipe(name, recipe)
    outcome, ours_s = outcome_of(run), steady(run).step_time_s
    if ours_s is None or run.plan is None:
        raise TrialFailed("the run measured no time of a step", outcome)
    tokens = run.plan.effective_batch * run.plan.sequence_length
    speeds, compared = {"brimful": tokens / ours_s}, []
    for trainer, words in NAMES.items():
        if trainer == TRAINER and importlib.util.find_spec("accelerate") is None:
            compared.append(f"{words} not tried, because accelerate is not installed")
            continue
        job = _job(run.plan, place, trainer, name, max(run.last_step, FIRST_STEPS + 1))
        theirs = _timed(place, name, job)
        speeds[words] = tokens / theirs.step_time_s
        ratio = theirs.step_time_s / ours_s
        compared.append(f"{ratio:.2f}x {words} (micro-batches of {theirs.micro_batch})")
    return Outcome(
        status=HELD,
        what=f"{speeds['brimful']:,.0f} tokens per second, {listed(compared)}",
        facts={**outcome.facts, "tokens_per_s": speeds},
    )


def _job(plan: Plan, place: Workplace, trainer: str, name: str, steps: int) -> PlainJob:
    return PlainJob(
        trainer=trainer,
        model=str((place.runs / name / MODEL_FOLDER).absolute()),
        device=place.device,
        sequences=plan.effective_batch,
        sequence_length=plan.sequence_length,
        micro_batch=plan.micro_batches[0],
        steps=steps,
        precision=plan.precision,
        compiled=plan.compile,
        threads=plan.threads,
    )


def _timed(place: Workplace, name: str, job: PlainJob) -> PlainResult:
    """Run a job in a process of its own; its messages go to the trial's output."""
    with place.output_of(name).open("a", encoding="utf-8") as output:
        output.write(f"$ python {' '.join(job.command()[:2])} # {NAMES[job.trainer]}\n")
        output.flush()
        try:
            ended = subprocess.run(  # noqa: S603 - this Python, this package
                [sys.executable, "-P", *job.command()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=of_a_plain_process(),
                timeout=LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TrialFailed(
                f"{NAMES[job.trainer]} had not ended after {LONGEST_S / 60:.0f} minutes"
            ) from None
    if ended.returncode:
        raise TrialFailed(f"{NAMES[job.trainer]} failed; {place.output_of(name)} says why")
    return PlainResult(**json.loads(ended.stdout.decode().splitlines()[-1]))
