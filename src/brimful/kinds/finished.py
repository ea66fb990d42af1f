"""What is done with a finished run, as most kinds do it: its model is loaded, writes a sample, is
prompted by tasks and scored.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import BrimfulError, Interrupted
from brimful.base.text import shortened_at_a_word
from brimful.base.types import JsonDict, Progress
from brimful.base.warning_codes import as_note
from brimful.data.chat import Template
from brimful.evaluation.nats import Nats, write_nats
from brimful.evaluation.task_prompts import Subject
from brimful.generation.answers import GenerationRequest
from brimful.generation.answers import write as write_text
from brimful.generation.load import LoadedRun, load_run, load_untuned
from brimful.generation.sampler import SamplingSettings
from brimful.generation.samples import write_samples
from brimful.generation.side_by_side import write_side_by_side
from brimful.kinds.run_data import AnyRunData, ScoringOptions, plan_of
from brimful.planning.plan import Plan
from brimful.planning.spacing import most_sampled
from brimful.planning.step import EVALUATION_FACTOR
from brimful.training.world import ALONE, World


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: the data it was trained on, and its model, which is loaded when first used.

    Attributes:
        folder: The run folder.
        data: Data as it was trained and validated on.
        device: Where the model goes.
        untuned: Whether to load the published model as it was before this run tuned it.
        world: Ranks that score it together; each holds the whole model.
    """

    folder: Path
    data: AnyRunData
    device: torch.device
    untuned: bool = False
    world: World = ALONE

    @cached_property
    def plan(self) -> Plan:
        """The plan of its last session; raises PlanError as `plan_of`."""
        return plan_of(self.folder)

    @cached_property
    def loaded(self) -> LoadedRun:
        """The language model, in eval mode on the device.

        Raises:
            BrimfulError: as `load_run` and `load_untuned`.
        """
        if self.untuned:
            return load_untuned(self.folder, self.device)
        return load_run(self.folder, self.device, torch.float32)


def use_once(data: AnyRunData, run_folder: Path, plan: Plan, console: Console) -> None:
    """Write a sample of the trained model, and the answers of both models to the same prompts if
    the plan says so.
    """
    recipe, device = data.recipe, torch.device(str(plan.device["kind"]))
    with told_if_it_fails("sample", console):
        loaded = load_run(run_folder, device, torch.float32)
        shown = data.sample_prompt
        told = f"sample after {shown.text!r}:"
        console_printer(console)(shortened_at_a_word(told, console.width))
        settings = SamplingSettings.from_recipe(recipe.sample)
        writing = GenerationRequest(
            settings, most_sampled(recipe, plan.total_steps), seed=recipe.seed
        )
        samples = write_text(loaded, shown.prompt, writing, console.file)
        write_samples(run_folder, samples)
        del loaded
    if plan.base is not None and plan.base.samples:
        with told_if_it_fails("samples beside the base's", console, "B313"):
            write_side_by_side(run_folder, device, data.shown_prompts, recipe.sample.tokens)


@contextmanager
def told_if_it_fails(what: str, console: Console, code: str = "B325") -> Iterator[None]:
    """While entered, turn an error into a note that there is no `what`: the run is trained and
    saved, which a sample of it must not take away.
    """
    try:
        yield
    except Interrupted:
        raise
    except BrimfulError as error:
        console_printer(console)(as_note(f"no {what}: {error}", code))


def subject_of(data: AnyRunData, loaded: LoadedRun) -> Subject:
    """Return the model of a finished run as tasks prompt it."""
    template = loaded.template or Template.of(loaded.tokenizer, "plain")
    stop_ids = loaded.stop_ids | template.stop_ids
    return Subject(
        loaded.model,
        loaded.tokenizer,
        template,
        stop_ids,
        loaded.is_tuned,
        loaded.context,
        ways=("chat",) if loaded.is_tuned else ("plain",),
        precision=data.recipe.plan.precision,
    )


def score_splits(
    run: TrainedRun,
    folder: Path,
    names: Sequence[str],
    stride: int | None,
    progress: Progress,
) -> JsonDict:
    """Score whole splits of a finished run; the arguments are those of `RunData.score_finished`."""
    options = ScoringOptions(
        plan=run.plan,
        device=run.device,
        rows=EVALUATION_FACTOR * run.plan.micro_batches[0],
        stride=stride,
        exact=True,
        progress=progress,
        world=run.world,
    )
    records = {}
    for name in names:
        likelihood = run.data.score(run.loaded.model, name, options)
        if stride is None:
            write_nats(folder, name, Nats(likelihood.window_nats_N, likelihood.window_tokens_N))
        key = name if stride is None else f"{name}, stride {stride}"
        records[key] = likelihood.to_json() | run.data.baselines(name)
    return records
