"""Importing is cheap: what answers a question about recipes or devices loads no framework."""

import subprocess
import sys
from pathlib import Path

import pytest
from fixture_types import Refuses

import brimful

HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "matplotlib",
    "numpy",
    "tensorboard",
    "safetensors",
    "jinja2",
    "bitsandbytes",
)
"""What takes long to import."""


def _loaded_after(code: str) -> set[str]:
    """The heavy packages in a fresh interpreter after `code`, which may end with SystemExit(0)."""
    ending = (
        "finally:\n    import sys; print('\\nLOADED', *{name.partition('.')[0] for name in"
        " sys.modules})"
    )
    body = "\n".join(f"    {line}" for line in code.splitlines())
    program = (
        f"try:\n{body}\nexcept SystemExit as end:\n    assert not end.code, end.code\n{ending}"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split()) & set(HEAVY)


def test_the_check_sees_a_heavy_import() -> None:
    assert _loaded_after("import numpy") == {"numpy"}


@pytest.mark.parametrize(
    "module",
    [
        "brimful",
        "brimful.cli",
        "brimful.recipe",
        "brimful.hardware.catalog",
        "brimful.hardware.device",
        "brimful.base.rundir",
    ],
)
def test_importing_a_description_loads_no_framework(module: str) -> None:
    assert _loaded_after(f"import {module}") == set()


def test_planning_loads_numpy_and_no_framework() -> None:
    assert _loaded_after(
        "import brimful.planning.derive, brimful.chains.plans, brimful.planning.surveyed"
    ) == {"numpy"}


@pytest.mark.long
def test_a_training_loads_few_modules_and_figures_and_quantisation_when_they_are_used() -> None:
    """What scores, reports or mirrors is none of a training's before its first step: what all runs
    load here is 218 modules of brimful, to which a small recipe adds 20 until its first backward
    pass. Quantisation writes to the terminal as it is loaded, unless it is told not to.
    """
    loaded = _loaded_after(
        "import brimful.chains.pipeline, brimful.kinds.documents, sys\n"
        "count = sum(name.partition('.')[0] == 'brimful' for name in sys.modules)\n"
        "assert count <= 220, count\n"
        "import brimful.integrations.other_tools.stand_ins"
    )

    assert "torch" in loaded
    assert loaded & {"matplotlib", "bitsandbytes"} == set()


def test_looking_at_runs_loads_no_torch_not_even_in_a_notebook() -> None:
    looking = (
        "brimful.notebook",
        "brimful.report.page.html",
        "brimful.report.comparison.page",
        "brimful.report.listing.listing",
        "brimful.report.live.watch",
        "brimful.runs.named",
    )
    loaded = _loaded_after("\n".join(f"import {module}" for module in looking))

    assert loaded & {"torch", "transformers"} == set()


def test_help_of_every_verb_and_questions_about_recipes_load_no_framework() -> None:
    verbs = [
        "",
        "doctor",
        "plan",
        "train",
        "run",
        "generate",
        "evaluate",
        "diagnose",
        "report",
        "recipes",
        "recipes show",
        "recipes schema",
        "devices",
        "models",
    ]
    questions = [
        *(f"{verb} --help".split() for verb in verbs),
        ["recipes"],
        ["recipes", "show", "quickstart"],
        ["recipes", "schema"],
        ["devices", "t4"],
        ["models", "smol"],
        ["--version"],
    ]
    code = f"""
import sys
from brimful.cli import main
for arguments in {questions!r}:
    sys.argv = ["brimful", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
"""

    assert _loaded_after(code.strip()) == set()


def test_a_run_that_is_not_there_is_told_before_a_framework_is_loaded() -> None:
    verbs = ["generate", "predict", "export", "evaluate", "diagnose", "report", "compare"]
    code = f"""
import sys
from brimful.cli import main
for verb in {verbs!r}:
    sys.argv = ["brimful", verb, "no-such-run"] + ["corpus.txt"] * (verb == "predict")
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, (verb, end.code)
"""

    assert _loaded_after(code.strip()) & {"torch", "transformers"} == set()


def test_help_answers_within_a_third_of_a_second_of_work() -> None:
    """CPU time beyond an interpreter that does nothing; the best of three, because others use the
    machine, too.
    """

    def cpu_s(*arguments: str) -> float:
        code = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:],"
            " stdout=subprocess.DEVNULL, check=True); used ="
            " resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
        )
        measured = (
            subprocess.run(
                [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
            )
            for _ in range(3)
        )
        return min(float(result.stdout) for result in measured)

    asking = cpu_s(
        sys.executable,
        "-c",
        "import sys; sys.argv = ['brimful', '--help']; from brimful.cli import main; main()",
    )
    assert asking - cpu_s(sys.executable, "-c", "pass") < 0.3


@pytest.mark.parametrize("name", brimful.__all__)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    assert getattr(brimful, name).__doc__


def test_dir_and_help_show_the_public_functions() -> None:
    import pydoc

    assert set(brimful.__all__) <= set(dir(brimful))
    shown = pydoc.plain(pydoc.render_doc(brimful))
    for name in ("train(", "run(", "plan(", "evaluate(", "load_recipe", "class Recipe"):
        assert name in shown


def test_public_names_are_sorted_and_an_unknown_one_is_an_attribute_error(refuses: Refuses) -> None:
    assert brimful.__all__ == sorted(brimful.__all__)
    with refuses(AttributeError, names=["'trian'"]):
        _ = brimful.trian


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(brimful.__file__).parent / "py.typed").is_file()
