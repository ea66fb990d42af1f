"""What is refused of a recipe's tasks before a run begins."""

from brimful.evaluation.lm_eval import require_lm_eval
from brimful.evaluation.task import checked_tasks, task_changes
from brimful.evaluation.task_data import load_examples
from brimful.evaluation.task_run import refuse_unjudgeable
from brimful.kinds.run_data import AnyRunData
from brimful.recipe import Recipe


def refuse_unknown_tasks(recipe: Recipe) -> None:
    """Raise RequestError for an unknown task in evaluation.tasks, or among the keys of
    evaluation.data.
    """
    checked_tasks(recipe.evaluation.tasks, task_changes(recipe.evaluation))
    checked_tasks([*recipe.evaluation.data])


def refuse_unreadable_tasks(recipe: Recipe) -> None:
    """Read the data of tasks that do not use the run's own, so that missing data are reported
    before the training and not after it.

    Raises:
        RequestError: no such task, or its harness is not installed; DataError: its data cannot be
            read.
    """
    own, foreign = checked_tasks(recipe.evaluation.tasks)
    if foreign:
        require_lm_eval(foreign)
    for task in own:
        if task.data.run is None:
            load_examples(task, paths=recipe.evaluation.data, own={})


def refuse_unscorable(recipe: Recipe, data: AnyRunData) -> None:
    """Raise if a task asks the run's own examples, and none of them can be asked and judged.

    Raises:
        RequestError: there are none; DataError: the answer of one cannot be judged.
    """
    own, _ = checked_tasks(recipe.evaluation.tasks)
    for task in own:
        if task.data.run is not None:
            refuse_unjudgeable(task, load_examples(task, paths={}, own=data.examples))
