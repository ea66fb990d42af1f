"""A run folder as a typed value, and what the run measured.

A folder is read once, leniently: what is missing or damaged is None or empty, and `run.problems`
says it in words. Nothing behind this package picks keys out of JSON.

    from brimful.runs.folder import read_run
    from brimful.runs.measurements import measured

    run = read_run(Path("runs/quickstart"))
    run.name, run.kind, run.is_tuned, run.recipe.data.path, run.predicted("step_time_s")
    [step.loss for step in run.steps], run.end.reason if run.end else "", run.tasks.summaries
    run.scores.likelihood["test"].loss_interval, run.scores.labels["test"].metrics["f1"].value
    measured(run)["peak_memory_bytes"], "; ".join(run.problems.values())

Modules: `folder` the value itself, `files` names of files, `records` the journal, `sessions` its
parts, `facts` recipe, environment and data, `plans`, `scores`, `tasks`, `measurements` what follows
from the records, `parsing` JSON into dataclasses. A number that no float holds counts as missing.
"""
