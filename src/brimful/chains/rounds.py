"""Rejection-sampling fine-tuning: demonstrations, samples that are verified, training, again; and
one table. An overview: it sees every stage.

Yuan et al. 2023 (arXiv 2308.01825): every round trains the same base anew, on the demonstrations
and on all distinct correct answers that were sampled so far. Deviation: samples come from the
student of the round before, or from a teacher in all rounds.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically, write_text_atomically
from brimful.chains import pipeline
from brimful.chains.checks import refuse_unreadable_tasks
from brimful.chains.sampling import Material, draw, gather_questions, rft_of
from brimful.chains.score_files import is_scored
from brimful.chains.study import Member, claim, publish, score_base, train_and_score, train_member
from brimful.data.formats import Example, Message, Prompt, examples_of, text_of_prompt
from brimful.data.questions import PromptQuestion
from brimful.data.sources import open_rows
from brimful.evaluation.task_prompts import text_ending_of
from brimful.generation.author import Author, source_fingerprint, teacher, tuned_author
from brimful.generation.load import recipe_of
from brimful.hardware.probe import probe, torch_device
from brimful.mirror.folder import mirrored_folder
from brimful.recipe import BASE, OF_RECIPE, DataRecipe, Recipe
from brimful.report.comparison.compare import compare
from brimful.report.comparison.results import LOSS
from brimful.runs.files import STUDY_FILE
from brimful.selection.journal import JOURNAL_FILE, TRAINING_FILE, training_row
from brimful.training.admission import status_of
from brimful.training.memory_errors import give_back_memory

DEMONSTRATIONS_FILE = "demonstrations.jsonl"
SFT = "sft"
"""Name of the variant that is trained on demonstrations alone."""


def run_rounds(
    recipe: Recipe, console: Console, *, fresh: bool = False, accept: Sequence[str] = ()
) -> Path:
    """The whole chain with every seed: tune on demonstrations, sample, tune on what was kept, in
    rounds; score all, compare, write the page.

    The same command again goes on where it stopped.

    Returns:
        The path of the page.

    Raises:
        BrimfulError: as sampling, training and evaluation do.
    """
    chain = _Chain.begin(recipe, console, fresh=fresh, accept=accept)
    done = [member for seed in chain.seeds for member in chain.rounds(seed)]
    runs = [score_base(done, chain.folder, console), *(member.folder for member in done)]
    comparison = compare(
        runs, [BASE, *(member.variant for member in done)], without=(LOSS,)
    )  # each holds out examples of its own
    return publish(
        chain.recipe,
        chain.folder,
        comparison,
        console,
        facts={"what": chain.what(), "rounds": chain.drawn},
    )


def sample(
    recipe: Recipe, console: Console, *, fresh: bool = False, accept: Sequence[str] = ()
) -> Path:
    """The first drawing of the chain, with what it needs: a student that samples is tuned on the
    demonstrations first.

    Returns:
        The folder of the samples.

    Raises:
        BrimfulError: as sampling and training do.
    """
    chain = _Chain.begin(recipe, console, fresh=fresh, accept=accept)
    seed = chain.seeds[0]
    student = None if chain.has_teacher else chain.member(SFT, seed, ())
    if student is not None:
        chain.note_examples(student)
        train_member(student, console, fresh=fresh, accept=accept)
    return chain.sample(1, seed, student)


@dataclass
class _Chain:
    """One recipe's rounds, in a folder of their own.

    Attributes:
        recipe: Its model is a hub id or a folder.
        folder: Holds the runs and samples.
        material: What is asked.
        demonstrations: Solved examples that the evaluation does not ask.
        drawn: Facts of every drawing, for the page.
    """

    recipe: Recipe
    folder: Path
    material: Material
    demonstrations: tuple[Example, ...]
    console: Console
    train: Callable[[Member], None]
    drawn: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def begin(
        cls, recipe: Recipe, console: Console, *, fresh: bool, accept: Sequence[str]
    ) -> "_Chain":
        """Read all data before anything is trained."""
        material, folder = gather_questions(recipe), pipeline.folder_of(recipe)
        demonstrations, left_out = _demonstrations(recipe, material)
        material = _asked_like(demonstrations, material)
        if not all(
            is_scored(folder / f"{SFT}{_suffix(recipe, seed)}", recipe)
            for seed in rft_of(recipe).seeds
        ):
            refuse_unreadable_tasks(recipe)
        claim(folder, recipe)
        write_text_atomically(folder / DEMONSTRATIONS_FILE, _rows_text(demonstrations))
        if left_out:
            console_printer(console)(
                f"{left_out} demonstrations are left out, because the evaluation asks them"
            )
        source = pipeline.source_of(recipe, console) or recipe.model
        train = partial(train_and_score, console=console, fresh=fresh, accept=accept)
        return cls(
            recipe.model_copy(update={"model": source}),
            folder,
            material,
            demonstrations,
            console,
            train,
        )

    @property
    def seeds(self) -> list[int]:
        return rft_of(self.recipe).seeds

    @property
    def has_teacher(self) -> bool:
        return rft_of(self.recipe).teacher is not None

    def what(self) -> dict[str, str]:
        """By variant, what it is."""
        rft = rft_of(self.recipe)
        told = {SFT: f"tuned on {len(self.demonstrations):,} demonstrations"}
        both = "the demonstrations and " if rft.with_demonstrations else ""
        for number in range(1, rft.rounds + 1):
            told[_round_name(number)] = (
                f"the base tuned anew on {both}what was kept in"
                f" {'round 1' if number == 1 else f'rounds 1 to {number}'}"
            )
        return told

    def rounds(self, seed: int) -> Iterator[Member]:
        """Train and score every variant with one seed."""
        student = self.member(SFT, seed, ())
        self._tune(student)
        yield student
        folders: list[Path] = []
        for number in range(1, rft_of(self.recipe).rounds + 1):
            self.console.rule(self._sample_folder(number, seed).name)
            folders.append(self.sample(number, seed, student, tuple(folders)))
            before, student = student, self.member(_round_name(number), seed, folders)
            self._tune(student)
            self.drawn[-1]["trained_tokens"] = {
                member.variant: trained_tokens(member.folder) for member in (before, student)
            }
            yield student

    def member(self, variant: str, seed: int, samples: Sequence[Path]) -> Member:
        """A run of the chain, tuned on demonstrations and on samples. Samples that are too long for
        it are dropped: they cost a night to draw.
        """
        with_demonstrations = rft_of(self.recipe).with_demonstrations or not samples
        files = [self.folder / DEMONSTRATIONS_FILE] * with_demonstrations + [
            folder / TRAINING_FILE for folder in samples
        ]
        data = self.recipe.data.model_copy(
            update={
                "path": [str(file.resolve()) for file in files],
                "format": "prompt",
                "columns": {},
                "config_name": None,
                "max_documents": None,
            }
        )
        if samples and data.long_documents == "error":
            data = data.model_copy(update={"long_documents": "drop"})
        run = self.recipe.run.member(f"{variant}{_suffix(self.recipe, seed)}", self.folder)
        changed = self.recipe.model_copy(
            update={
                "rft": None,
                "seed": seed,
                "data": DataRecipe.model_validate(data.model_dump()),
                "run": run,
            }
        )
        return Member(variant, changed)

    def note_examples(self, member: Member) -> None:
        """Write down what a member is tuned on.

        Raises:
            RunFolderError: it is finished and was tuned on other examples, so that its scores would
                stand beside counts that are not its own.
        """
        path, name, files = (
            self.folder / STUDY_FILE,
            member.folder.name,
            list(map(Path, member.recipe.data.paths)),
        )
        record = read_json(path)
        noted, now = (
            record.get("tuned_on", {}),
            xxhash.xxh3_128_hexdigest(b"".join(file.read_bytes() for file in files)),
        )
        if noted.get(name, now) != now and status_of(member.folder) == "finished":
            told = ", ".join(f"{file.parent.name}/{file.name}" for file in files)
            raise RunFolderError(
                f"{member.folder} was tuned on other examples than there are now in {told}: the"
                " recipe or its data changed since. Put them back, choose another name with"
                f" run.name=NAME, or move {member.folder} away to tune it anew."
            )
        write_json_atomically(path, {**record, "tuned_on": {**noted, name: now}})

    def _tune(self, member: Member) -> None:
        self.console.rule(member.folder.name)
        self.note_examples(member)
        self.train(member)

    def sample(
        self, number: int, seed: int, student: Member | None, before: Sequence[Path] = ()
    ) -> Path:
        """One drawing; returns its folder. Paths that were kept in drawings before are not kept
        again.
        """
        folder, rft = self._sample_folder(number, seed), rft_of(self.recipe)
        here = probe(self.recipe.plan.device)
        device = torch_device(here)
        load_author: Callable[[], Author]
        if rft.teacher is None and student is not None:
            author_id = source_fingerprint(str(student.folder / "model"))
            load_author = partial(tuned_author, student.folder, device)
        else:
            source = self._teacher_source(str(rft.teacher))
            precision = (
                "fp32" if device.type == "cpu" else "bf16" if here.abilities.bf16 else "fp16"
            )
            author_id = f"{source_fingerprint(source)}, shown {rft.shots}: {rft.system}"
            load_author = partial(teacher, source, rft, self.demonstrations, device, precision)
        seed_of_round = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        with mirrored_folder(
            self.recipe.run.member(folder.name, self.folder).mirror, folder, JOURNAL_FILE, self._say
        ):
            facts = draw(
                self.recipe,
                self.material,
                load_author,
                folder,
                self.console,
                seed=seed_of_round,
                author_id=author_id,
                before=before,
            )
        give_back_memory(device)  # the training that follows plans with what is free
        self.drawn.append(
            {
                "round": number,
                "seed": seed,
                "folder": folder.name,
                **{
                    key: facts[key]
                    for key in ("author", "backend", "notes", "seconds", "statistics", "examples")
                },
            }
        )
        return folder

    def _say(self, told: str) -> None:
        console_printer(self.console)(told)

    def _teacher_source(self, named: str) -> str:
        return (
            pipeline.source_of(self.recipe.model_copy(update={"model": named}), self.console)
            if named.startswith(OF_RECIPE)
            else named
        )

    def _sample_folder(self, number: int, seed: int) -> Path:
        return self.folder / f"samples-{number}{_suffix(self.recipe, seed)}"


def trained_tokens(run_folder: Path) -> int:
    """Tokens that a run's training read: its steps, of the batch's examples of mean length."""
    counts = read_json(run_folder / "data.json")["splits"]["train"]
    recipe, plan = recipe_of(run_folder), read_json(run_folder / "plan.json")
    read_per_example: float = (counts["tokens"] - counts["examples"]) / counts["examples"]
    return round(int(plan["total_steps"]) * recipe.effective_batch * read_per_example)


def _round_name(number: int) -> str:
    return f"rft-{number}"


def _suffix(recipe: Recipe, seed: int) -> str:
    return f"-seed{seed}" if len(rft_of(recipe).seeds) > 1 else ""


def _demonstrations(recipe: Recipe, material: Material) -> tuple[tuple[Example, ...], int]:
    """The examples of `data` that the evaluation does not ask, and how many it does."""
    found = [
        example
        for part in open_rows(recipe.data).parts
        for example in examples_of(part.splits["train"], recipe.data)
    ]
    kept = tuple(
        example for example in found if material.held_out.find(text_of_prompt(example), "") is None
    )
    if not kept:
        raise DataError(
            "data: the evaluation asks all demonstrations, so none is left to train on. Choose"
            " others."
        )
    return kept, len(found) - len(kept)


def _asked_like(demonstrations: Sequence[Example], material: Material) -> Material:
    """Questions in the form of the demonstrations, messages or text: so a student was tuned, so it
    is asked, and so it learns from its samples.
    """
    ending = text_ending_of(demonstrations)

    def asked(question: PromptQuestion) -> PromptQuestion:
        prompt = question.prompt
        if ending is None:
            return replace(
                question, prompt=(Message("user", prompt),) if isinstance(prompt, str) else prompt
            )
        return replace(
            question, prompt=prompt if isinstance(prompt, str) else question.text.rstrip() + ending
        )

    questions = replace(material.questions, asked=tuple(map(asked, material.questions.asked)))
    return replace(material, questions=questions, fingerprint=f"{material.fingerprint} {ending!r}")


def _rows_text(examples: Sequence[Example]) -> str:
    return "".join(
        json.dumps(training_row(_prompt_of(example), example.completion)) + "\n"
        for example in examples
    )


def _prompt_of(example: Example) -> Prompt:
    if example.prompt is None:
        raise DataError(
            f"{example.where}: text without a question cannot be a demonstration. Rows need a"
            " question and an answer."
        )
    return example.prompt
