"""One drawing of a chain of rounds: which model answers, and how several ranks draw together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from brimful.base.types import JsonDict
from brimful.chains import pipeline
from brimful.chains.demonstrations import asked_like, read_demonstrations
from brimful.chains.ranks import Jobs, find_device, lead, refuse_unlike
from brimful.chains.sampling import draw
from brimful.chains.sampling_questions import SamplingQuestions, gather_questions, rft_of
from brimful.data.formats import Example
from brimful.generation.author import Author, source_fingerprint, teacher, tuned_author
from brimful.hardware.device import Device
from brimful.hardware.probe import torch_device
from brimful.model.catalog import needs_folder
from brimful.recipe import OF_RECIPE, Recipe
from brimful.training.memory_errors import give_back_memory
from brimful.training.world import World


@dataclass(frozen=True)
class RoundDrawing:
    """The samples of one round with one seed.

    Attributes:
        recipe: Its model is a hub id or a folder.
        questions: What is asked.
        demonstrations: Solved examples, for a teacher.
        folder: Gets the samples.
        seed: The seed of all samples.
        student: Run folder of the model that answers, where the recipe names no teacher.
        before: Folders of earlier rounds; paths kept there are not kept again.
    """

    recipe: Recipe
    questions: SamplingQuestions
    demonstrations: tuple[Example, ...]
    folder: Path
    seed: int
    student: Path | None
    before: tuple[Path, ...]

    def lead(self, console: Console, world: World) -> JsonDict:
        """Draw on rank 0, with the other ranks that follow its jobs; return what sampling.json
        holds.

        Raises:
            BrimfulError: as `draw`.
        """
        lead(
            world,
            "draw",
            recipe=self.recipe.model_dump(mode="json"),
            folder=str(self.folder),
            seed=self.seed,
            student=None if self.student is None else str(self.student),
            before=list(map(str, self.before)),
        )
        return self.draw(console, world)

    def draw(self, console: Console, world: World) -> JsonDict:
        """Draw together; every rank calls this.

        Raises:
            BrimfulError: as `draw`; DeviceError, RunFolderError: ranks differ.
        """
        device = find_device(world, self.recipe.plan.device)
        author_id, load_author = world.check(lambda: self._author(device, console))
        refuse_unlike(world, device, {"model": author_id, "questions": self.questions.fingerprint})
        facts = draw(
            self.recipe,
            self.questions,
            load_author,
            self.folder,
            console,
            seed=self.seed,
            author_id=author_id,
            before=self.before,
            world=world,
        )
        give_back_memory(torch_device(device))  # training that follows plans with the free memory
        return facts

    def _author(self, here: Device, console: Console) -> tuple[str, Callable[[], Author]]:
        """Identify the model that answers, a student or the recipe's teacher, and how it loads."""
        rft, device = rft_of(self.recipe), torch_device(here)
        if rft.teacher is None and self.student is not None:
            author_id = source_fingerprint(str(self.student / "model"))
            return author_id, partial(tuned_author, self.student, device)
        source = str(rft.teacher)
        if source.startswith(OF_RECIPE) or needs_folder(source):
            named = self.recipe.model_copy(update={"model": source})
            source = pipeline.source_of(named, console)
        precision = "bf16" if here.abilities.bf16 else "fp16"
        if device.type == "cpu":
            precision = "fp32"
        author_id = f"{source_fingerprint(source)}, shown {rft.shots}: {rft.system}"
        return author_id, partial(teacher, source, rft, self.demonstrations, device, precision)


def _help_to_draw(
    world: World,
    recipe: JsonDict,
    folder: str,
    seed: int,
    student: str | None,
    before: Sequence[str],
) -> None:
    chosen = Recipe.model_validate(recipe)
    questions = gather_questions(chosen)
    demonstrations, _ = read_demonstrations(chosen, questions)
    drawing = RoundDrawing(
        chosen,
        asked_like(demonstrations, questions),
        demonstrations,
        Path(folder),
        seed,
        None if student is None else Path(student),
        tuple(map(Path, before)),
    )
    drawing.draw(Console(quiet=True), world)


DRAWING: Jobs = {"draw": _help_to_draw}
"""What ranks after the first do while the first one draws samples."""
