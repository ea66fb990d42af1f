"""One recipe's rounds of rejection sampling: its runs and samples in a folder of their own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import RunFolderError
from brimful.base.rundir import write_text_atomically
from brimful.chains import pipeline
from brimful.chains.checks import refuse_unreadable_tasks
from brimful.chains.demonstrations import asked_like, demonstration_lines, read_demonstrations
from brimful.chains.round_drawing import RoundDrawing
from brimful.chains.sampling_questions import SamplingQuestions, gather_questions, rft_of
from brimful.chains.score_files import is_scored
from brimful.chains.study_folder import claim, note
from brimful.chains.study_members import Member, train_and_score
from brimful.data.formats import Example
from brimful.generation.load import recipe_of
from brimful.mirror.folder import mirrored_folder
from brimful.recipe import DataRecipe, Recipe
from brimful.runs.deciding import read_deciding, read_object
from brimful.runs.files import STUDY_FILE
from brimful.selection.journal import JOURNAL_FILE, TRAINING_FILE
from brimful.training.admission import status_of
from brimful.training.world import ALONE, World

DEMONSTRATIONS_FILE = "demonstrations.jsonl"
SFT = "sft"
"""Name of the variant that is trained on demonstrations alone."""
_FACTS_ON_PAGE = ("author", "backend", "notes", "seconds", "statistics", "examples")


@dataclass
class RoundChain:
    """One recipe's rounds, in a folder of their own.

    Attributes:
        recipe: Its model is a hub id or a folder.
        folder: Holds the runs and samples.
        questions: What is asked.
        demonstrations: Solved examples that the evaluation does not ask.
        train: Trains and scores a member.
        drawn: Facts of every drawing, for the page.
        world: Ranks that draw samples together; all but the first follow jobs.
    """

    recipe: Recipe
    folder: Path
    questions: SamplingQuestions
    demonstrations: tuple[Example, ...]
    console: Console
    train: Callable[[Member], None]
    drawn: list[dict[str, Any]] = field(default_factory=list)
    world: World = ALONE

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        console: Console,
        *,
        fresh: bool,
        accept: Sequence[str],
        world: World = ALONE,
    ) -> "RoundChain":
        """Read all data, and claim the folder, before anything is trained.

        Raises:
            BrimfulError: questions, demonstrations or tasks cannot be read, or the folder holds
                something else.
        """
        questions, folder = gather_questions(recipe), pipeline.folder_of(recipe)
        demonstrations, left_out = read_demonstrations(recipe, questions)
        questions = asked_like(demonstrations, questions)
        students = [folder / f"{SFT}{_suffix(recipe, seed)}" for seed in rft_of(recipe).seeds]
        if not all(is_scored(student, recipe) for student in students):
            refuse_unreadable_tasks(recipe)
        say = console_printer(console)
        claim(folder, recipe, say)
        write_text_atomically(folder / DEMONSTRATIONS_FILE, demonstration_lines(demonstrations))
        for told in left_out:
            say(told)
        source = pipeline.source_of(recipe, console) or recipe.model
        sourced = recipe.model_copy(update={"model": source})
        train = partial(train_and_score, console=console, fresh=fresh, accept=accept, world=world)
        return cls(sourced, folder, questions, demonstrations, console, train, world=world)

    @property
    def seeds(self) -> list[int]:
        return rft_of(self.recipe).seeds

    @property
    def has_teacher(self) -> bool:
        return rft_of(self.recipe).teacher is not None

    def descriptions(self) -> dict[str, str]:
        """What each variant was trained on, by its name."""
        rft = rft_of(self.recipe)
        both = "the demonstrations and " if rft.with_demonstrations else ""
        described = {SFT: f"tuned on {len(self.demonstrations):,} demonstrations"}
        for number in range(1, rft.rounds + 1):
            rounds = "round 1" if number == 1 else f"rounds 1 to {number}"
            described[_round_name(number)] = (
                f"the base tuned anew on {both}what was kept in {rounds}"
            )
        return described

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
        """Return a run of the chain, tuned on demonstrations and on samples. Samples that exceed
        its sequence length are dropped, so that a night of drawing does not end in an error.
        """
        files = [folder / TRAINING_FILE for folder in samples]
        if rft_of(self.recipe).with_demonstrations or not samples:
            files.insert(0, self.folder / DEMONSTRATIONS_FILE)
        changes: dict[str, Any] = {
            "path": [str(file.resolve()) for file in files],
            "format": "prompt",
            "columns": {},
            "config_name": None,
            "max_documents": None,
        }
        if samples and self.recipe.data.long_documents == "error":
            changes["long_documents"] = "drop"
        data = DataRecipe.model_validate({**self.recipe.data.model_dump(), **changes})
        run = self.recipe.run.member(f"{variant}{_suffix(self.recipe, seed)}", self.folder)
        update = {"rft": None, "seed": seed, "data": data, "run": run}
        return Member(variant, self.recipe.model_copy(update=update))

    def note_examples(self, member: Member) -> None:
        """Record which examples a member is tuned on.

        Raises:
            RunFolderError: it is finished and was tuned on other examples, so that its scores would
                stand beside counts that are not its own.
        """
        name = member.folder.name
        files = list(map(Path, member.recipe.data.paths))
        noted = read_object(self.folder / STUDY_FILE).get("tuned_on", {})
        now = xxhash.xxh3_128_hexdigest(b"".join(file.read_bytes() for file in files))
        if noted.get(name, now) != now and status_of(member.folder) == "finished":
            sources = ", ".join(f"{file.parent.name}/{file.name}" for file in files)
            raise RunFolderError(
                f"{member.folder} was tuned on other examples than there are now in {sources}: the"
                " recipe or its data changed since. Put them back, choose another name with"
                f" run.name=NAME, or move {member.folder} away to tune it anew."
            )
        note(self.folder, {"tuned_on": {**noted, name: now}})

    def _tune(self, member: Member) -> None:
        self.console.rule(member.folder.name)
        self.note_examples(member)
        self.train(member)

    def sample(
        self, number: int, seed: int, student: Member | None, before: Sequence[Path] = ()
    ) -> Path:
        """Draw the samples of a round and return their folder. Paths that earlier rounds kept are
        not kept again.
        """
        folder = self._sample_folder(number, seed)
        drawing = RoundDrawing(
            self.recipe,
            self.questions,
            self.demonstrations,
            folder,
            int(np.random.SeedSequence((seed, number)).generate_state(1)[0]),
            None if student is None else student.folder,
            tuple(before),
        )
        mirror = self.recipe.run.member(folder.name, self.folder).mirror
        with mirrored_folder(mirror, folder, JOURNAL_FILE, console_printer(self.console)):
            facts = drawing.lead(self.console, self.world)
        shown = {key: facts[key] for key in _FACTS_ON_PAGE}
        self.drawn.append({"round": number, "seed": seed, "folder": folder.name, **shown})
        return folder

    def _sample_folder(self, number: int, seed: int) -> Path:
        return self.folder / f"samples-{number}{_suffix(self.recipe, seed)}"


def trained_tokens(run_folder: Path) -> int:
    """Return how many tokens a run's training read: its steps, of a batch of examples of mean
    length.
    """
    counts = read_deciding(run_folder, "data.json")["splits"]["train"]
    recipe, plan = recipe_of(run_folder), read_deciding(run_folder, "plan.json")
    read_per_example: float = (counts["tokens"] - counts["examples"]) / counts["examples"]
    return round(int(plan["total_steps"]) * recipe.effective_batch * read_per_example)


def _round_name(number: int) -> str:
    return f"rft-{number}"


def _suffix(recipe: Recipe, seed: int) -> str:
    return f"-seed{seed}" if len(rft_of(recipe).seeds) > 1 else ""
