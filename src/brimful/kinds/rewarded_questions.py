"""The questions of a run whose answers are rewarded."""

from typing import Any

from brimful.base.errors import DataError
from brimful.base.text import plural
from brimful.base.warning_codes import coded
from brimful.data.examples import PreparedExamples
from brimful.data.formats import text_of_prompt
from brimful.data.questions import PromptQuestion, read_questions
from brimful.evaluation.task_data import scored_questions
from brimful.recipe import QuestionsRecipe, Recipe
from brimful.recipe.rewards import rewards_of
from brimful.selection.contamination import EvaluationQuestions
from brimful.selection.rewarded import Judges, RewardedQuestion


def read_rewarded(
    recipe: Recipe, prepared: PreparedExamples, judges: Judges
) -> tuple[dict[str, list[RewardedQuestion]], list[str]]:
    """Return the questions of each split, without what the evaluation asks, too, and notes on what
    is left out.

    Args:
        recipe: Says where the questions lie and how long answers may be.
        prepared: The same rows as examples; what are their answers there is not learned.
        judges: Have to be able to hold answers against every reference.

    Raises:
        DataError: a split has no question that can be asked, or a reference cannot be read.
    """
    read, notes, rules = dict[str, PromptQuestion](), list[str](), rewards_of(recipe)
    held_out = EvaluationQuestions(scored_questions(recipe))
    room = recipe.sequence_length + 1 - rules.max_new_tokens
    questions: dict[str, list[RewardedQuestion]] = {}
    for name, split in prepared.splits.items():
        texts = [text_of_prompt(example).strip() for example in split.examples]
        read |= _read(recipe, name, read.keys() >= {*texts})
        found: list[RewardedQuestion] = []
        num_asked = num_long = 0
        for text, example in dict(zip(texts, split.examples, strict=True)).items():
            ids = tuple(prepared.template.prompt_ids(example.prompt or ""))
            if held_out.find(text, "") is not None:
                num_asked += 1
            elif len(ids) > room:
                num_long += 1
            else:
                each = read[text]
                found.append(
                    RewardedQuestion(each.id, text, ids, each.reference, each.row, each.where)
                )
        limits = f"sequence_length {recipe.sequence_length} with rewards.max_new_tokens"
        left_out = {
            "which the evaluation asks": num_asked,
            f"too long for {limits} {rules.max_new_tokens}": num_long,
        }
        told = [f"{plural(n, 'question')} {why}" for why, n in left_out.items() if n]
        notes += [coded("B205", f"{name}: not asked: {each}") for each in told]
        if not found and name != "test":
            raise DataError(
                f"the {name} split has nothing that can be asked: {'; '.join(told)}. Use other"
                " questions, or other lengths."
            )
        for question in found:
            _refuse_unreadable(question, judges)
        questions[name] = found
    return questions, notes


def _read(recipe: Recipe, split: str, is_read: bool) -> dict[str, PromptQuestion]:
    """Return the questions of a split by their texts. One that the source does not have was held
    out of its training split.
    """
    if is_read:
        return {}
    place: Any = recipe.data.model_dump(include={"path", "config_name", "format", "columns"})
    asked = read_questions(QuestionsRecipe.model_construct(**place | {"split": split})).asked
    return {each.text.strip(): each for each in asked}


def _refuse_unreadable(question: RewardedQuestion, judges: Judges) -> None:
    try:
        judges.check(question)
    except (ValueError, DataError) as error:
        raise DataError(
            f"{question.where}: no answer can be held against {question.reference[:80]!r}:"
            f" {str(error).rstrip('.')}. Correct or remove the row, or choose other"
            f" rewards.verifiers than {', '.join(judges.names)}."
        ) from error
