"""Names of the files in a run folder, and what each holds."""

RECIPE_FILE = "recipe.yaml"
PLAN_FILE = "plan.json"
ENVIRONMENT_FILE = "environment.json"
DATA_FILE = "data.json"
BAD_ROWS_FILE = "bad_rows.jsonl"
REFERENCE_FILE = "reference.json"
JOURNAL_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
SIDE_BY_SIDE_FILE = "side_by_side.jsonl"
SCORES_FILE = "scores.json"
STATUS_FILE = "run.json"
MIRROR_FILE = "mirror.json"
CLASSIFIER_FILE = "classifier.json"
STUDY_FILE = "study.json"
STUDY_RECIPE = "study.yaml"
CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
EVALUATIONS_FOLDER = "evaluations"
PURPOSE = {
    RECIPE_FILE: "what was asked for",
    PLAN_FILE: "the plan and its predictions",
    ENVIRONMENT_FILE: "the machine and the versions",
    DATA_FILE: "the data and the tokenizer",
    JOURNAL_FILE: "what was measured while training",
    SAMPLES_FILE: "text of the model",
    SCORES_FILE: "the final scores",
}
"""Files of which every run folder has at least one, and what each is for."""
