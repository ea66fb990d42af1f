"""How fast brimful trains, tunes and samples beside other programs that do the same. Speeds decide
nothing.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from brimful.base.libraries import how_to_install
from brimful.generation.backends.choice import Choice
from brimful.planning.plan import Plan
from brimful.prove.material import FUNCTIONS_FILE
from brimful.prove.plain_sampling import SamplingJob
from brimful.prove.plain_training import FIRST_STEPS, LOOP, TRAINER, PlainJob, PlainResult
from brimful.prove.record import HELD, SKIPPED, Outcome
from brimful.prove.training import outcome_of
from brimful.prove.trl_tuning import TrlJob
from brimful.prove.workplace import TrialFailed, Workplace
from brimful.recipe import load
from brimful.report.quantities import listed
from brimful.runs.files import MODEL_FOLDER
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import steady


class SeparateWork(Protocol):
    """Work of another program, in a process of its own."""

    def command(self) -> list[str]:
        """Return the arguments of Python that do it and print the result as JSON."""
        ...


@dataclass(frozen=True)
class OtherProgram:
    """Another program that does the same.

    Attributes:
        words: What a reader calls it.
        package: What has to be installed for it beside brimful; "" for nothing.
    """

    words: str
    job: SeparateWork
    package: str = ""

    @property
    def is_installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None


def _installed(programs: Iterable[OtherProgram]) -> list[OtherProgram]:
    """Return the programs that can be run here."""
    return [each for each in programs if each.is_installed]


def _not_tried(programs: Iterable[OtherProgram]) -> list[str]:
    """Return, for each program that cannot be run here, the reason."""
    return [
        f"{each.words} not tried, because {each.package} is not installed"
        for each in programs
        if not each.is_installed
    ]


def trains_beside_others(place: Workplace, name: str, recipe: Mapping[str, Any]) -> Outcome:
    """Train a recipe, then a model of the same shape for as many steps in other ways: the same
    tokens a step, precision and choice of compiling, with the plan's micro-batch or, where that
    takes more memory there, a smaller one.

    Raises:
        TrialFailed: a training failed, or no time was measured.
    """
    run = place.run_recipe(name, recipe)
    plan, ours_s = plan_and_step_time(run)
    jobs = {trainer: _plain_job(plan, place, trainer, name, run) for trainer in (LOOP, TRAINER)}
    rivals = [
        OtherProgram("a plain PyTorch loop", jobs[LOOP]),
        OtherProgram("transformers' Trainer", jobs[TRAINER], "accelerate"),
    ]
    tokens = plan.effective_batch * plan.sequence_length
    return _compared_steps(place, name, run, rivals, ours_s, tokens, "tokens")


def tunes_beside_trl(place: Workplace, name: str, recipe: Mapping[str, Any], base: Path) -> Outcome:
    """Tune a model with LoRA by a recipe, then by TRL with as many examples a step, the same
    adapters and the same precision: with TRL's defaults, and where the plan does not compute
    activations again, without that, too.

    Args:
        base: Folder of the model that is tuned.

    Raises:
        TrialFailed: a tuning failed, or no time was measured.
    """
    if importlib.util.find_spec("trl") is None:
        return Outcome(status=SKIPPED, what=f"TRL is not installed. {how_to_install('trl')}")
    run = place.run_recipe(name, {**recipe, "model": str(base.relative_to(place.folder))})
    plan, ours_s = plan_and_step_time(run)
    loaded = load(str(place.folder / "recipes" / f"{name}.yaml"))
    adapter, examples = loaded.adapter, loaded.effective_batch
    if adapter is None:
        raise TrialFailed("the recipe has no adapters", outcome_of(run))

    def job(*, recompute: bool | None) -> TrlJob:
        return TrlJob(
            model=str(base.absolute()),
            examples=str((place.folder / FUNCTIONS_FILE).absolute()),
            device=place.device,
            sequences=examples,
            sequence_length=plan.sequence_length,
            steps=max(run.last_step, FIRST_STEPS + 1),
            precision=plan.precision,
            recompute=recompute,
            rank=adapter.rank,
            targets=list(adapter.target_names),
            threads=plan.threads,
        )

    rivals = [OtherProgram("TRL with its defaults", job(recompute=None))]
    if not plan.recompute:
        rivals.append(OtherProgram("TRL without recomputation", job(recompute=False)))
    return _compared_steps(place, name, run, rivals, ours_s, examples, "examples")


def samples_beside_others(
    place: Workplace, name: str, base: Path, *, prompts: int, samples: int, tokens: int
) -> Outcome:
    """Write texts with each back end from the same weights, prompts and settings, in bf16.

    Args:
        base: Folder of the model.
        prompts: Number of prompts.
        samples: Texts for each of them.
        tokens: Length of a prompt, and of a text.

    Raises:
        TrialFailed: a back end failed.
    """

    def job(backend: Choice) -> SamplingJob:
        return SamplingJob(
            backend=backend,
            model=str(base.absolute()),
            device=place.device,
            dtype="bfloat16",
            prompts=prompts,
            samples=samples,
            prompt_tokens=tokens,
            tokens=tokens,
        )

    rivals = [OtherProgram("transformers' continuous batching", job("transformers"))]
    if place.device.startswith("cuda"):
        rivals.append(OtherProgram("vLLM", job("vllm"), "vllm"))
    ours = _result_of(place, name, OtherProgram("brimful", job("brimful")))["tokens_per_s"]
    speeds, compared = {"brimful": ours}, []
    for rival in _installed(rivals):
        speeds[rival.words] = _result_of(place, name, rival)["tokens_per_s"]
        compared.append(f"{ours / speeds[rival.words]:.2f}x {rival.words}")
    compared += _not_tried(rivals)
    return Outcome(
        status=HELD,
        what=f"{ours:,.0f} new tokens per second, {listed(compared)}",
        facts={"tokens_per_s": speeds},
    )


def plan_and_step_time(run: RunFolder) -> tuple[Plan, float]:
    """Return a run's plan and the seconds of its steps (median).

    Raises:
        TrialFailed: no time was measured.
    """
    step_time_s = steady(run).step_time_s
    if step_time_s is None or run.plan is None:
        raise TrialFailed("the run measured no time of a step", outcome_of(run))
    return run.plan, step_time_s


def _compared_steps(
    place: Workplace,
    name: str,
    run: RunFolder,
    rivals: list[OtherProgram],
    ours_s: float,
    count: int,
    unit: str,
) -> Outcome:
    """Return how a run compares with others by the time of a step, in which each takes in `count`
    of a unit.
    """
    speeds, compared = {"brimful": count / ours_s}, []
    for rival in _installed(rivals):
        theirs = PlainResult(**_result_of(place, name, rival))
        speeds[rival.words] = count / theirs.step_time_s
        ratio = theirs.step_time_s / ours_s
        compared.append(f"{ratio:.2f}x {rival.words} (micro-batches of {theirs.micro_batch})")
    compared += _not_tried(rivals)
    outcome = outcome_of(run)
    return Outcome(
        status=HELD,
        what=f"{speeds['brimful']:,.1f} {unit} per second, {listed(compared)}",
        facts={**outcome.facts, f"{unit}_per_s": speeds},
    )


def _plain_job(plan: Plan, place: Workplace, trainer: str, name: str, run: RunFolder) -> PlainJob:
    return PlainJob(
        trainer=trainer,
        model=str((place.runs / name / MODEL_FOLDER).absolute()),
        device=place.device,
        sequences=plan.effective_batch,
        sequence_length=plan.sequence_length,
        micro_batch=plan.micro_batches[0],
        steps=max(run.last_step, FIRST_STEPS + 1),
        precision=plan.precision,
        compiled=plan.compile,
        threads=plan.threads,
    )


def _result_of(place: Workplace, name: str, rival: OtherProgram) -> dict[str, Any]:
    return place.result_of(name, rival.words, rival.job.command())
