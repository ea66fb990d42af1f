"""The recipe: what to train. It never names a GPU, a micro-batch, a precision or a kernel; those
are the plan's.

Importing this imports neither torch nor transformers.
"""

from brimful.recipe.base import Auto, Section
from brimful.recipe.choices import (
    BASE,
    AdapterRecipe,
    FeedbackRecipe,
    OrthogonalityRecipe,
    PlanChoices,
    RunChoices,
    StudyRecipe,
)
from brimful.recipe.data import DataRecipe, TokenizerRecipe
from brimful.recipe.kinds import KINDS, Kind, kind_of_method
from brimful.recipe.labels import LabelsRecipe, RebalanceRecipe
from brimful.recipe.loading import (
    differences,
    load,
    load_text,
    shipped_names,
    shipped_text,
    with_changes,
)
from brimful.recipe.rft import QuestionsRecipe, RftRecipe
from brimful.recipe.sections import (
    OF_RECIPE,
    BatchRecipe,
    CheckpointRecipe,
    EvaluationRecipe,
    ModelRecipe,
    OptimizerRecipe,
    Recipe,
    SampleRecipe,
    TrainingRecipe,
)

__all__ = [
    "BASE",
    "KINDS",
    "OF_RECIPE",
    "AdapterRecipe",
    "Auto",
    "BatchRecipe",
    "CheckpointRecipe",
    "DataRecipe",
    "EvaluationRecipe",
    "FeedbackRecipe",
    "Kind",
    "LabelsRecipe",
    "ModelRecipe",
    "OptimizerRecipe",
    "OrthogonalityRecipe",
    "PlanChoices",
    "QuestionsRecipe",
    "RebalanceRecipe",
    "Recipe",
    "RftRecipe",
    "RunChoices",
    "SampleRecipe",
    "Section",
    "StudyRecipe",
    "TokenizerRecipe",
    "TrainingRecipe",
    "differences",
    "kind_of_method",
    "load",
    "load_text",
    "shipped_names",
    "shipped_text",
    "with_changes",
]
