"""Rounds of rejection sampling, planned as a whole on one device."""

from brimful.chains.checks import checked_tasks, task_changes
from brimful.data.conversion import NUM_ROWS
from brimful.evaluation.task import Task
from brimful.planning.chain import AskedTexts, ChainPhase, chain_phases, task_examples
from brimful.planning.plan import Plan
from brimful.planning.specs import model_facts
from brimful.recipe import Recipe, RftRecipe
from brimful.verify.verifier import load_verifier

_BUILTIN = "builtin:unit-conversion"


def phases_of(recipe: Recipe, plan: Plan) -> list[ChainPhase]:
    """Return what every phase of a recipe's rounds is expected to take; nothing for other recipes.
    A teacher is counted as if it were the student.

    Raises:
        RequestError: no such task or verifier; PlanError: the model is none.
    """
    rft = recipe.rft
    if rft is None:
        return []
    own, _ = checked_tasks(recipe.evaluation.tasks, task_changes(recipe.evaluation))
    by_request = {task.request: task for task in own}
    asked = [_asked(task, recipe) for task in by_request.values()]
    config = dict(model_facts(recipe).config)
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config |= text_config
    return chain_phases(recipe, rft, plan, config, _sampled(rft), asked)


def _sampled(rft: RftRecipe) -> AskedTexts | None:
    """What one round draws with one seed; None where the number of questions is not known yet."""
    questions = rft.questions.max_questions
    if questions is None and str(rft.questions.path).startswith(_BUILTIN):
        questions = NUM_ROWS[rft.questions.split]
    if questions is None:
        return None
    needs_sandbox = load_verifier(rft.verifier).needs_sandbox
    verdict = "program" if needs_sandbox else "number"
    what = f"{questions:,} questions"
    return AskedTexts(what, questions * rft.samples_per_prompt, rft.max_new_tokens, verdict)


def _asked(task: Task, recipe: Recipe) -> AskedTexts:
    known = None
    if task.data.builtin is not None and task.data.splits:  # else its questions are in a file
        known = sum(NUM_ROWS[split] for split in task.data.splits)
    count = task_examples(known, recipe.evaluation.max_examples) * task.sampling.samples
    return AskedTexts(task.name, count, task.sampling.max_new_tokens)
