"""Uses of a finished run's model: continue prompts, answer them, and look for damage."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from brimful.base.env import runs_folder
from brimful.base.errors import (
    RequestError,
)
from brimful.base.rundir import write_text_atomically
from brimful.chains.checks import refuse_changed_data
from brimful.chains.ranks import device_to_share
from brimful.data.formats import Prompt
from brimful.evaluation.diagnose import Finding, diagnose_model
from brimful.evaluation.task import load_task, task_names
from brimful.generation.answers import GenerationRequest, ask, converse, show_before_and_after
from brimful.generation.answers import write as write_text
from brimful.generation.load import load_run, recipe_of, trained_folder
from brimful.generation.sampler import SamplingSettings
from brimful.generation.samples import TextSample
from brimful.hardware.probe import probe, torch_device
from brimful.kinds.finished import TrainedRun
from brimful.kinds.run_data import gather, run_data_class
from brimful.report.live.progress import data_progress
from brimful.runs.named import resolve_run
from brimful.training.checkpoint import CheckpointStore, verify
from brimful.training.world import ALONE, World
from brimful.verify.extract import python_verdict

_CODE_METRICS = frozenset({"syntax", "pass_at_k"})
"""What only answers in code are measured by."""
MODERATE = SamplingSettings(temperature=0.8, top_k=None, top_p=1.0)


def finished_run(
    run_folder: Path, console: Console, *, untuned: bool = False, world: World = ALONE
) -> TrainedRun:
    """Return a finished run with the data it was trained and validated on. The ranks of a `world`
    score it together.

    Raises:
        RunFolderError: it is not finished, or its data changed; DataError: they cannot be read.
    """
    recipe, device = recipe_of(run_folder), device_to_share(world, run_folder)
    if not untuned:
        trained_folder(run_folder)
    source = run_data_class(recipe.kind).source_of_finished(run_folder)
    with data_progress(console, brief=True) as progress:
        data = gather(recipe, source, progress)
    refuse_changed_data(run_folder, data)
    return TrainedRun(run_folder, data, device, untuned, world)


class Writer:
    """A finished run's model, loaded once, that continues prompts, or answers them as it was tuned
    to.

    Args:
        run_folder: A run's name or folder.
        settings: How tokens are drawn.
        tokens: New tokens at most.
        count: Texts per prompt.
        seed: Same seed, same text.
    """

    def __init__(
        self,
        run_folder: str | Path,
        settings: SamplingSettings = MODERATE,
        *,
        tokens: int = 200,
        count: int = 1,
        seed: int = 0,
    ) -> None:
        folder = resolve_run(run_folder, runs_folder())
        self._loaded = load_run(folder, torch_device(probe("auto")), torch.float32)
        self._how = GenerationRequest(settings, tokens, count, seed)

    def write(self, prompt: Prompt, show: Callable[[str], None] | None = None) -> list[TextSample]:
        """Continue one prompt, text or messages; `show` receives the text as it comes when one
        sample was asked for.
        """
        return self._how.draw(self._loaded, prompt, show)


def write(
    run_folder: Path,
    prompt: str | None,
    how: GenerationRequest,
    console: Console,
    *,
    beside_base: bool = False,
    code: bool | None = None,
    output: Path | None = None,
) -> None:
    """Print what a finished run's model makes of a prompt; without one, of all that is typed.

    Args:
        output: A file that gets the text as it is, in place of a terminal.
        beside_base: Whether what the model wrote before it was tuned stands beside.
        code: Say of every answer whether it is Python; None: where a task of the recipe is about
            code.
    """
    tasks = recipe_of(run_folder).evaluation.tasks
    how = replace(
        how, judge=python_verdict if code or (code is None and _are_about_code(tasks)) else None
    )
    if output is not None and (prompt is None or beside_base):
        raise RequestError(
            "--output writes one model's text. Add --prompt TEXT, and no --beside-base."
        )
    device = torch_device(probe("auto"))
    if not beside_base:
        loaded = load_run(run_folder, device, torch.float32)
        loaded.refuse_where_it_writes_nothing()
        if prompt is None:
            converse(loaded, how, ask)
        elif output is None:
            write_text(loaded, prompt, how)
        else:
            made = io.StringIO()
            write_text(loaded, prompt, how, made, shown=str)
            write_text_atomically(output, made.getvalue())
    elif prompt is None:
        raise RequestError("--beside-base compares answers to one prompt. Add --prompt TEXT.")
    else:
        show_before_and_after(console, run_folder, device, prompt, how)


def diagnose(run_folder: Path, console: Console) -> list[Finding]:
    """Look at tokenizer, checkpoints, parameters, loss against counting baselines, a sample, and
    into layers of kernel attention and feedback.

    Raises:
        RequestError: the run's model does not continue text from nothing.
    """
    recipe = recipe_of(run_folder)
    if recipe.tunes_a_writer or not recipe.kind.continues_text:
        raise RequestError(
            f"{run_folder.name} is a run of method {recipe.method}; diagnose looks at models that"
            " learned"
            " to continue text from nothing."
        )
    run = finished_run(run_folder, console)
    with data_progress(console) as progress:
        store = CheckpointStore(run_folder / "checkpoints", keep=2)
        folders = [store.path_of(step) for step in store.steps()]
        return diagnose_model(
            run.loaded,
            run.data.splits["train"],
            run.data.splits["validation"],
            chunk_tokens=run.plan.loss_chunk,
            verify_checkpoint=verify,
            checkpoint_folders=folders,
            progress=progress,
        )


def _are_about_code(tasks: Sequence[str]) -> bool:
    return any(
        _CODE_METRICS.intersection(load_task(name).metrics)
        for name in set(tasks).intersection(task_names())
    )
