"""The files of a study, read leniently once: what is missing or damaged in them is left out."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from brimful.base.dotted import parse_yaml
from brimful.base.errors import RunFolderError
from brimful.base.types import JsonDict, Numbers, Texts
from brimful.runs.bookkeeping import json_or_none
from brimful.runs.deciding import read_recipe_text
from brimful.runs.facts import RecipeFacts
from brimful.runs.files import STUDY_FILE, STUDY_RECIPE
from brimful.runs.parsing import mapping, parse, parse_value
from brimful.selection.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class SampleExample:
    """One sample to look at: the question, the sampled answer, the reference and what became of
    it.
    """

    question: str
    answer: str
    reference: str
    fate: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class RoundSamples:
    """What one seed sampled in a round.

    Attributes:
        round: Counted from 1.
        seed: Seed as text.
        author: Which model wrote the samples.
        folder: Holds the samples, relative to the study.
        trained_tokens: Tokens that were trained on, by kind of example; one without a name is the
            number of all.
        notes: What must be known about the samples.
        examples: A few samples to look at.
    """

    round: int
    seed: str
    author: str
    folder: str
    statistics: Statistics
    trained_tokens: Numbers
    notes: tuple[str, ...]
    examples: tuple[SampleExample, ...]

    @classmethod
    def from_json(cls, value: object) -> "RoundSamples | None":
        if not isinstance(value, dict):
            return None
        tokens = value.get("trained_tokens")
        by_kind = tokens if isinstance(tokens, dict) else {"": tokens}
        return parse(cls, value | {"trained_tokens": by_kind})


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """What a phase of a job was expected to take, and took; None where it is not known."""

    name: str
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    measured_s: float | None = None
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyFolder:
    """A study or a chain of rounds.

    Attributes:
        recipe: Recipe of study.yaml.
        descriptions: A sentence about each variant of a chain of rounds.
        left_out: Runs that were not trained, each with the reason.
        rounds: Rounds by number, then in the order of the file.
        phases: Phases of the whole job, in order.
    """

    path: Path
    recipe: RecipeFacts = field(default_factory=RecipeFacts)
    descriptions: Texts = field(default_factory=dict, metadata={"key": "what"})
    left_out: Texts = field(default_factory=dict)
    rounds: tuple[RoundSamples, ...] = ()
    phases: tuple[PhaseTime, ...] = ()

    @property
    def name(self) -> str:
        """The name in the recipe, by default that of the folder."""
        return self.recipe.name or self.path.name

    @property
    def data(self) -> tuple[str, ...]:
        """Paths of the data."""
        path = self.recipe.data.path or ()
        return (path,) if isinstance(path, str) else path

    def changes(self, variant: str) -> tuple[str, ...]:
        """Return what a variant changes in the recipe."""
        variants = self.recipe.study.variants if self.recipe.study else {}
        return parse_value(tuple[str, ...], variants.get(variant)) or ()


def read_study(folder: Path) -> StudyFolder:
    """Read what there is of study.yaml and study.json."""
    recipe = parse(RecipeFacts, _recipe_values(folder / STUDY_RECIPE))
    values = json_or_none(folder / STUDY_FILE) or {}
    study = parse(StudyFolder, values, path=folder, recipe=recipe)
    return replace(study, rounds=tuple(sorted(study.rounds, key=lambda each: each.round)))


def _recipe_values(path: Path) -> JsonDict:
    try:
        return mapping(parse_yaml(read_recipe_text(path)))
    except (ValueError, RunFolderError):
        return {}
