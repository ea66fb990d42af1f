"""The files of a study, read leniently once: what is missing or damaged in them is left out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json
from brimful.report.tuned import STUDY_FILE
from brimful.runs.runfiles import Json, items, number, section
from brimful.selection.statistics import KindCounts, RejectionReason, Share, Statistics

RECIPE_FILE = "study.yaml"


@dataclass(frozen=True)
class RoundSamples:
    """What one seed sampled in a round.

    Attributes:
        round: Counted from 1.
        seed: As text.
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
    trained_tokens: dict[str, float]
    notes: tuple[str, ...]
    examples: tuple["SampleExample", ...]


@dataclass(frozen=True)
class SampleExample:
    """One sample to look at: the question, the sampled answer, the reference and what became of
    it.
    """

    question: str
    answer: str
    reference: str
    fate: str
    detail: str


@dataclass(frozen=True)
class StudyFolder:
    """A study or a chain of rounds.

    Attributes:
        recipe: Values of study.yaml.
        descriptions: A sentence about each variant of a chain of rounds.
        left_out: Runs that were not trained, each with the reason.
        rounds: By round, then in the order of the file.
    """

    path: Path
    recipe: Json
    descriptions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    rounds: tuple[RoundSamples, ...] = ()

    @property
    def name(self) -> str:
        """The name in the recipe, by default that of the folder."""
        return str(self.recipe.get("name") or self.path.name)

    @property
    def description(self) -> str:
        """The description in the recipe."""
        return str(self.recipe.get("description") or "")

    @property
    def model(self) -> str:
        """Name of the published model that is tuned; empty for a model from random weights."""
        model = self.recipe.get("model")
        return model if isinstance(model, str) else ""

    @property
    def data(self) -> tuple[str, ...]:
        """Paths of the data."""
        path = section(self.recipe, "data").get("path")
        return (path,) if isinstance(path, str) else tuple(map(str, items(path)))

    def changes(self, variant: str) -> tuple[str, ...]:
        """Return what a variant changes in the recipe."""
        variants = section(section(self.recipe, "study"), "variants")
        return tuple(map(str, items(variants.get(variant))))


def read_study(folder: Path) -> StudyFolder:
    """Read what there is of study.yaml and study.json."""
    recipe = _mapping(folder / RECIPE_FILE, _read_yaml)
    values = _mapping(folder / STUDY_FILE, read_json)
    return StudyFolder(
        folder,
        recipe,
        _texts(section(values, "what")),
        _texts(section(values, "left_out")),
        rounds_of(values),
    )


def _mapping(path: Path, read: Callable[[Path], Any]) -> Json:
    try:
        value = read(path)
    except (OSError, ValueError, yaml.YAMLError, RunFolderError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rounds_of(study: Json) -> tuple[RoundSamples, ...]:
    """Return the rounds in the values of study.json, in order."""
    rounds = [_round_samples(each) for each in _mappings(study.get("rounds"))]
    return tuple(sorted(rounds, key=lambda each: each.round))


def _round_samples(values: Json) -> RoundSamples:
    tokens = values.get("trained_tokens")
    by_kind = tokens if isinstance(tokens, dict) else {"": tokens}
    counts = {str(kind): number(count) for kind, count in by_kind.items()}
    return RoundSamples(
        round=_count(values, "round"),
        seed=str(values.get("seed")),
        author=str(values.get("author") or ""),
        folder=str(values.get("folder") or ""),
        statistics=read_statistics(section(values, "statistics")),
        trained_tokens={kind: count for kind, count in counts.items() if count is not None},
        notes=tuple(map(str, items(values.get("notes")))),
        examples=tuple(map(_example, _mappings(values.get("examples")))),
    )


def _example(values: Json) -> SampleExample:
    keys = ("question", "answer", "reference", "fate", "detail")
    return SampleExample(*(str(values.get(key) or "") for key in keys))


def read_statistics(values: Json) -> Statistics:
    """Return statistics of samples from their JSON; numbers that are missing are 0."""
    reasons = [
        RejectionReason(
            str(each.get("fate") or ""),
            str(each.get("detail") or ""),
            _count(each, "samples"),
            str(each.get("question") or ""),
            str(each.get("completion") or ""),
        )
        for each in _mappings(values.get("reasons"))
    ]
    kinds = section(values, "kinds")
    return Statistics(
        questions=_count(values, "questions"),
        samples=_count(values, "samples"),
        tokens=_count(values, "tokens"),
        fates={name: _count(section(values, "fates"), name) for name in section(values, "fates")},
        correct=_share(section(values, "correct")),
        answered=_share(section(values, "answered")),
        questions_by_kept=[
            int(number(each) or 0) for each in items(values.get("questions_by_kept"))
        ],
        questions_by_correct=[],
        questions_by_paths=[],
        kinds={name: _kind(section(kinds, name)) for name in kinds},
        lengths=None,
        lengths_kept=None,
        reasons=reasons,
    )


def _kind(values: Json) -> KindCounts:
    return KindCounts(
        _count(values, "questions"),
        _count(values, "questions_with_kept"),
        _count(values, "kept"),
        _share(section(values, "correct")),
    )


def _share(values: Json) -> Share | None:
    share, low, high = (number(values.get(key)) for key in ("share", "low", "high"))
    if share is None or low is None or high is None:
        return None
    return Share(_count(values, "count"), _count(values, "total"), share, low, high)


def _count(values: Json, key: str) -> int:
    return int(number(values.get(key)) or 0)


def _mappings(values: object) -> Iterator[Json]:
    return (each for each in items(values) if isinstance(each, dict))


def _texts(values: Json) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}
