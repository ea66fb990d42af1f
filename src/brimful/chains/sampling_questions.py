"""The questions of rejection sampling: read, checked, and none of them asked by the evaluation."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import xxhash

from brimful.base.errors import DataError, RequestError
from brimful.data.questions import PromptQuestion, QuestionSet, read_questions
from brimful.evaluation.task import task_names
from brimful.evaluation.task_data import scored_questions
from brimful.recipe import Recipe, RftRecipe
from brimful.selection.contamination import EvaluationQuestions
from brimful.verify.verifier import Verifier, load_verifier


@dataclass(frozen=True)
class SamplingQuestions:
    """The questions of a drawing, read before any model is loaded.

    Attributes:
        questions: Questions but for those that the evaluation asks.
        verifier: Judges their answers.
        held_out: The questions of the evaluation.
        fingerprint: Changes with the questions and with those of the evaluation.
        notes: What was left out, in words.
        known_paths: Ways of solving a question that earlier rounds kept, by question.
    """

    questions: QuestionSet
    verifier: Verifier
    held_out: EvaluationQuestions
    fingerprint: str
    notes: tuple[str, ...]
    known_paths: Mapping[str, frozenset[str]] = field(default_factory=dict)


def rft_of(recipe: Recipe) -> RftRecipe:
    """The recipe's section rft.

    Raises:
        RequestError: it has none.
    """
    if recipe.rft is None:
        raise RequestError(
            f"{recipe.name} has no section rft, which says what to ask and how to verify answers."
            " `brimful recipes show unit-rft` has one."
        )
    return recipe.rft


def gather_questions(recipe: Recipe) -> SamplingQuestions:
    """Read the questions, and check that every answer can be verified.

    Raises:
        DataError: no questions, or a reference that the verifier cannot read; RequestError: no such
            verifier, or what it needs is missing.
    """
    rft = rft_of(recipe)
    verifier, scored = load_verifier(rft.verifier), scored_questions(recipe)
    source, held_out = read_questions(rft.questions), EvaluationQuestions(scored)
    asked = tuple(each for each in source.asked if held_out.find(each.text, "") is None)
    if not asked:
        raise DataError(
            f"rft.questions: the evaluation asks all {len(source.asked)} questions of"
            f" {source.source}, too. Choose other questions to train on."
        )
    for question in asked:
        _refuse_unreadable_reference(question, verifier, rft.verifier)
    identity = json.dumps([[question.id for question in asked], scored])
    return SamplingQuestions(
        replace(source, asked=asked),
        verifier,
        held_out,
        xxhash.xxh3_128_hexdigest(identity.encode()),
        (*source.notes, *_left_out_notes(recipe, len(source.asked), len(asked))),
    )


def _left_out_notes(recipe: Recipe, num_questions: int, num_asked: int) -> Iterator[str]:
    if num_asked < num_questions:
        yield (
            f"{num_questions - num_asked} of {num_questions} questions are not asked, because the"
            " evaluation asks them"
        )
    if foreign := [name for name in recipe.evaluation.tasks if name not in task_names()]:
        yield (
            f"what {', '.join(foreign)} asks is not known here, so questions and samples are not"
            " compared with it"
        )


def _refuse_unreadable_reference(question: PromptQuestion, verifier: Verifier, name: str) -> None:
    try:
        verifier.check(question.row if verifier.needs_sandbox else question.reference)
    except (ValueError, DataError) as error:
        raise DataError(
            f"{question.where}: the verifier {name} cannot hold answers against"
            f" {question.reference[:80]!r}: {str(error).rstrip('.')}. Correct or remove the row,"
            " or choose another rft.verifier."
        ) from error
