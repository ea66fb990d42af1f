"""One recipe's rounds of rejection sampling: its runs and samples in a folder of their own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import numpy as np
import xxhash
from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import RunFolderError
from brimful.base.rundir import write_text_atomically
from brimful.base.types import JsonDict, Texts
from brimful.chains import pipeline
from brimful.chains.demonstrations import asked_like, demonstration_lines, read_demonstrations
from brimful.chains.opening import RunOptions
from brimful.chains.phases import (
    DEMONSTRATIONS_FILE,
    SFT,
    JobPart,
    Member,
    RoundSampling,
    folder_of,
    members,
    phases_of,
    round_name,
)
from brimful.chains.round_drawing import RoundDrawing
from brimful.chains.sampling_questions import SamplingQuestions, gather_questions, rft_of
from brimful.chains.score_files import is_scored
from brimful.chains.study_folder import claim, note
from brimful.chains.study_members import mended_status, score_base, train_and_score
from brimful.chains.task_checks import refuse_unreadable_tasks
from brimful.data.formats import Example
from brimful.generation.load import recipe_of
from brimful.mirror.folder import mirrored_folder
from brimful.recipe import Recipe
from brimful.runs.deciding import read_deciding, read_object
from brimful.runs.files import STUDY_FILE
from brimful.selection.journal import JOURNAL_FILE
from brimful.training.world import ALONE, World

_FACTS_ON_PAGE = ("author", "backend", "notes", "seconds", "statistics", "examples")


@dataclass
class RoundChain:
    """One recipe's rounds, in a folder of their own.

    Attributes:
        recipe: Its model is a hub id or a folder.
        folder: Holds the runs and samples.
        questions: What is asked.
        demonstrations: Solved examples that the evaluation does not ask.
        options: How members are trained.
        drawn: Facts of every drawing, for the page.
        done: Runs that are trained and scored.
    """

    recipe: Recipe
    folder: Path
    questions: SamplingQuestions
    demonstrations: tuple[Example, ...]
    console: Console
    options: RunOptions
    drawn: list[JsonDict] = field(default_factory=list)
    done: list[Member] = field(default_factory=list)

    @classmethod
    def begin(cls, recipe: Recipe, console: Console, **options: Unpack[RunOptions]) -> "RoundChain":
        """Read all data, and claim the folder, before anything is trained.

        Raises:
            BrimfulError: questions, demonstrations or tasks cannot be read, or the folder holds
                something else.
        """
        questions, folder = gather_questions(recipe), folder_of(recipe)
        demonstrations, left_out = read_demonstrations(recipe, questions)
        questions = asked_like(demonstrations, questions)
        students = [each for each in members(recipe) if each.variant == SFT]
        if not all(is_scored(student.folder, recipe) for student in students):
            refuse_unreadable_tasks(recipe)
        say = console_printer(console)
        claim(folder, recipe, say)
        write_text_atomically(folder / DEMONSTRATIONS_FILE, demonstration_lines(demonstrations))
        for told in left_out:
            say(told)
        source = pipeline.source_of(recipe, console) or recipe.model
        sourced = recipe.model_copy(update={"model": source})
        return cls(sourced, folder, questions, demonstrations, console, options)

    def descriptions(self) -> Texts:
        """What each variant was trained on, by its name."""
        rft = rft_of(self.recipe)
        both = "the demonstrations and " if rft.with_demonstrations else ""
        described = {SFT: f"tuned on {len(self.demonstrations):,} demonstrations"}
        compares = self.recipe.kind.compares_answers
        for number in range(1, rft.rounds + 1):
            rounds = "round 1" if number == 1 else f"rounds 1 to {number}"
            described[round_name(self.recipe, number)] = (
                f"{SFT} taught to prefer right to wrong answers of {rounds}"
                if compares
                else f"the base tuned anew on {both}what was kept in {rounds}"
            )
        return described

    @property
    def world(self) -> World:
        """Ranks that draw samples together; all but the first follow jobs."""
        return self.options.get("world", ALONE)

    @property
    def phases(self) -> list[JobPart]:
        """All that is done, in order."""
        return phases_of(self.recipe)

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
        is_other = noted.get(name, now) != now
        if is_other and mended_status(member.folder, self.console) == "finished":
            sources = ", ".join(f"{file.parent.name}/{file.name}" for file in files)
            raise RunFolderError(
                f"{member.folder} was tuned on other examples than there are now in {sources}: the"
                " recipe or its data changed since. Put them back, choose another name with"
                f" run.name=NAME, or move {member.folder} away to tune it anew."
            )
        note(self.folder, {"tuned_on": {**noted, name: now}})

    def do(self, phase: JobPart) -> None:
        """Do one of the phases, after those before it."""
        if isinstance(phase, RoundSampling):
            self.sample(phase)
        elif isinstance(phase, Member):
            self.tune(phase)
        else:
            score_base(self.done, self.folder, self.console, self.world)

    def tune(self, member: Member) -> None:
        """Train and score a run."""
        self.console.rule(member.folder.name)
        self.note_examples(member)
        train_and_score(member, self.console, **self.options)
        if member.variant != SFT:
            self.drawn[-1]["trained_tokens"] = {
                each.variant: trained_tokens(each.folder) for each in (self.done[-1], member)
            }
        self.done.append(member)

    def sample(self, drawing: RoundSampling) -> None:
        """Draw the samples of a round. Paths that earlier rounds kept are not kept again."""
        folder, seed, student = drawing.folder, drawing.seed, drawing.student
        self.console.rule(folder.name)
        round_drawing = RoundDrawing(
            self.recipe,
            self.questions,
            self.demonstrations,
            folder,
            int(np.random.SeedSequence((seed, drawing.number)).generate_state(1)[0]),
            None if student is None else student.folder,
            drawing.before,
        )
        mirror = self.recipe.run.member(folder.name, self.folder).mirror
        with mirrored_folder(mirror, folder, JOURNAL_FILE, console_printer(self.console)):
            facts = round_drawing.lead(self.console, self.world)
        shown = {key: facts[key] for key in _FACTS_ON_PAGE}
        self.drawn.append({"round": drawing.number, "seed": seed, "folder": folder.name, **shown})


def trained_tokens(run_folder: Path) -> int:
    """Return how many tokens a run's training read: its steps, of a batch of examples of mean
    length.
    """
    counts = read_deciding(run_folder, "data.json")["splits"]["train"]
    recipe, plan = recipe_of(run_folder), read_deciding(run_folder, "plan.json")
    read_per_example: float = (counts["tokens"] - counts["examples"]) / counts["examples"]
    examples = recipe.kind.rows_per_sample * recipe.effective_batch
    return round(int(plan["total_steps"]) * examples * read_per_example)
