"""The habits of this code that a machine can check: direction of imports, one loop, sizes, mirrored
tests.
"""

import ast
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import codebase

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "brimful"
MODULES = sorted(SOURCE.rglob("*.py"))

STAGES = (
    "recipe",
    "hardware",
    "model",
    "planning",
    "runs",
    "data",
    "training",
    "mirror",
    "generation",
    "classification",
    "verify",
    "selection",
    "evaluation",
    "kinds",
    "rehearsal",
    "integrations.other_tools",
    "report",
    "integrations.hf_trainer",
    "chains",
    "notebook",
    "faces",
    "prove",
    "cli",
)
"""The pipeline, in order: a stage imports what stands before it, itself, and `base`."""
OVERVIEWS = ("brimful", "brimful.__main__", "brimful.notebook.child")
"""What may import every stage."""
FOLDERS_WITHOUT_CODE = ("recipes",)

MAX_FILE_NODES, MAX_FUNCTION_STATEMENTS, MAX_FUNCTION_BRANCHES = 3500, 40, 14
"""Sizes that typing cannot squeeze: syntax nodes, statements, and branches with ternaries and
comprehensions counted."""

ROOM_NODES = {
    "base": 15_500,
    "recipe": 15_550,
    "hardware": 33_350,
    "model": 40_750,
    "planning": 72_500,
    "runs": 15_000,
    "data": 83_150,
    "training": 45_500,
    "mirror": 16_500,
    "generation": 32_200,
    "classification": 11_600,
    "verify": 19_900,
    "selection": 12_350,
    "evaluation": 31_700,
    "kinds": 16_100,
    "rehearsal": 39_700,
    "integrations": 45_550,
    "report": 98_100,
    "chains": 39_550,
    "notebook": 8_500,
    "faces": 17_500,
    "prove": 13_000,
    "cli": 10_500,
}
"""How many syntax nodes each room may have: what it had on 28 November 2026, rounded up. A change that
needs more raises the number in the same commit and says there what the nodes bought; one that makes
a room smaller lowers it.
"""
SPARE_NODES = 4000
"""A budget further above its room than this is lowered."""

TESTED_ELSEWHERE = {
    "rehearsal/fusing.py": "tests/rehearsal/test_working.py records chains of operators",
    "__main__.py": "tests/cli/test_verbs.py runs it as a process",
    "verify/environment_process.py": "tests/verify/test_environment.py runs it as a process",
    "verify/helper_process.py": "tests/verify/test_math_process.py asks and ends one",
    "cli/inputs.py": "tests/cli/test_verbs.py runs the verbs that share it",
    "cli/job_planning.py": "tests/chains/test_job_plans.py runs the verb",
    "cli/models.py": "tests/cli/test_verbs.py runs the verbs",
    "cli/planning.py": "tests/cli/test_verbs.py runs the verbs",
    "cli/training.py": "tests/cli/test_verbs.py runs the verbs",
    "cli/recipes.py": "tests/cli/test_verbs.py runs the verb",
    "chains/pipeline.py": "every public function of it is a verb, and tests/cli/test_verbs.py runs the verbs",
    "notebook/child.py": "tests/notebook/test_job.py runs it as a process",
    "notebook/device_plans.py": "tests/notebook/test_devices.py looks at its pages",
    "notebook/pages.py": "tests/notebook/test_answers.py and test_results.py make and show pages",
    "kinds/finished.py": "tests/chains/test_study.py and tests/test_tuning.py score and sample finished runs",
    "mirror/mirroring.py": "tests/mirror/test_opening.py and test_finished.py open mirrors by it",
    "kinds/documents.py": "tests/training/test_session.py trains on documents",
    "kinds/masked.py": "tests/generation/test_fill_mask.py trains an encoder",
    "kinds/examples.py": "tests/test_tuning.py tunes a published model",
    "base/arrays.py": "names of types, which mypy holds",
    "base/types.py": "names of types, which mypy holds",
    "base/console.py": "tests/cli/test_verbs.py reads what verbs print",
    "chains/outcome.py": "tests/chains/test_devices.py and test_opening.py read what runs say",
    "chains/task_checks.py": "tests/cli/test_verbs.py and tests/test_tuning.py are refused what it refuses",
    "chains/finished.py": "tests/cli/test_verbs.py and tests/test_tuning.py use finished runs",
    "chains/round_drawing.py": "tests/chains/test_rounds.py draws by students and teachers, also on ranks",
    "chains/limits.py": "tests/cli/test_verbs.py asks with budgets and sessions",
    "chains/plan_options.py": "tests/cli/test_verbs.py saves and verifies plans",
    "chains/run_plan.py": "tests/training/test_session.py continues runs by old and by other plans",
    "training/sharded_session.py": "tests/chains/test_ranks.py trains, kills and continues in parts",
    "chains/score_files.py": "tests/chains/test_study.py scores what is missing only",
    "chains/surveyed_devices.py": "tests/chains/test_plans.py plans for one device and for many",
    "chains/task_scores.py": "tests/chains/test_study.py and tests/test_tuning.py score on tasks",
    "chains/training_session.py": "tests/training/test_session.py trains, kills and continues runs",
    "planning/products.py": "tests/planning/test_recordings.py finds products of recorded numbers",
    "planning/family_file.py": "tests/rehearsal/test_tracer.py writes and reads real families",
    "integrations/other_tools/job.py": "tests/integrations/other_tools/test_same_job.py reads jobs of every tool",
    "integrations/other_tools/settings.py": "tests/integrations/other_tools/test_file.py reads good and bad settings",
    "integrations/other_tools/step.py": "values; tests/integrations/other_tools/stand_ins/test_losses.py traces them",
    "integrations/other_tools/training_arguments.py": "tests/integrations/other_tools/test_same_job.py changes each key",
    "integrations/other_tools/tools/axolotl.py": "tests/integrations/other_tools/test_same_job.py changes each key",
    "integrations/other_tools/tools/llama_factory.py": "tests/integrations/other_tools/test_same_job.py changes each key",
    "integrations/other_tools/tools/transformers_trainer.py": "tests/integrations/other_tools/test_same_job.py changes each key",
    "integrations/other_tools/tools/trl.py": "tests/integrations/other_tools/test_same_job.py changes each key",
    "integrations/other_tools/stand_ins/attention.py": "tests/integrations/other_tools/test_planned.py plans with it",
    "integrations/other_tools/stand_ins/kernels.py": "tests/integrations/other_tools/stand_ins/test_losses.py traces them",
    "integrations/other_tools/stand_ins/layers.py": "tests/integrations/other_tools/stand_ins/test_losses.py traces them",
    "integrations/other_tools/stand_ins/rehearsal.py": "tests/integrations/other_tools/stand_ins/test_losses.py traces steps",
    "generation/server/reply.py": "tests/generation/server/test_app.py asks for whole and streamed answers",
    "report/page/events.py": "tests/report/page/test_run_page.py reads whole pages",
    "report/page/facts.py": "tests/report/page/test_run_page.py reads whole pages",
    "report/plan/jobs.py": "tests/chains/test_job_plans.py reads what is printed",
    "rehearsal/kept_traces.py": "tests/chains/test_plans.py plans twice and traces once",
    "chains/sampling.py": "tests/chains/test_rounds.py draws, kills and resumes",
    "chains/sampling_questions.py": "tests/chains/test_rounds.py draws, kills and resumes",
    "chains/sampling_session.py": "tests/chains/test_rounds.py draws, kills and resumes",
    "chains/round_chain.py": "tests/chains/test_rounds.py runs whole chains",
    "chains/demonstrations.py": "tests/chains/test_rounds.py runs whole chains",
    "chains/study_folder.py": "tests/chains/test_study.py runs whole studies",
    "chains/study_members.py": "tests/chains/test_study.py runs whole studies",
    "recipe/labels.py": "tests/test_recipe.py holds recipes as a user meets them",
    "recipe/data.py": "tests/test_recipe.py holds recipes as a user meets them",
    "recipe/rewards.py": "tests/kinds/test_rewarded.py holds recipes with rewards as a user meets them",
    "kinds/rewarded_questions.py": "tests/kinds/test_rewarded.py asks questions good and bad",
    "selection/answer_journal.py": "tests/kinds/test_rewarded.py kills runs and goes on with them",
    "selection/answer_rounds.py": "tests/training/methods/test_grpo.py makes batches of rounds",
    "selection/rewarded.py": "tests/kinds/test_rewarded.py draws and rewards answers",
    "recipe/rft.py": "tests/chains/test_rounds.py holds recipes of rounds as a user meets them",
    "recipe/base.py": "what sections are made of; tests/test_recipe.py holds them",
    "recipe/sections.py": "tests/test_recipe.py holds recipes as a user meets them",
    "integrations/hf_trainer/fitting.py": "tests/integrations/hf_trainer/test_preparing.py prepares trainers for several devices",
    "runs/facts.py": "tests/runs/test_folder.py reads a whole run",
    "runs/files.py": "names of files",
    "runs/tasks.py": "tests/runs/test_folder.py reads a run's evaluations",
}
"""Modules without a test file of their own name, and why."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _name(path: Path) -> str:
    """`src/brimful/data/hub.py` -> `brimful.data.hub`."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    """Syntax trees are kept while the tests of this file run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codebase, "parse", functools.cache(codebase.parse))
        yield
    _nodes.cache_clear()


def _tree(path: Path) -> ast.Module:
    return codebase.parse(path)


@functools.cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """The tree and all below it."""
    return tuple(ast.walk(tree))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Modules (or names in modules) that are imported anywhere in a file, also inside functions."""
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _stage(module: str) -> str:
    """`brimful.data.hub.open_data_set` -> `data`; the package itself is ''. A room with two floors
    has a stage for each.
    """
    names = module.split(".")[1:]
    both = ".".join(names[:2])
    return both if both in STAGES else "".join(names[:1])


def _functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in _nodes(tree) if isinstance(node, Function))


def _wrong_imports(module: str, imports: Iterator[str]) -> list[str]:
    own = _stage(module)
    allowed = {"base", own} if own not in STAGES else {"base", *STAGES[: STAGES.index(own) + 1]}
    return [
        name for name in imports if name.split(".")[0] == "brimful" and _stage(name) not in allowed
    ]


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 40


def test_the_page_on_the_architecture_has_the_stages_in_their_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers = page.partition("base │")[2].partition("```")[0]
    assert tuple(each for each in layers.split() if each[0].isalpha()) == STAGES


def test_every_folder_is_a_stage_or_the_base() -> None:
    folders = {path.relative_to(SOURCE).parts[0] for path in MODULES if path.parent != SOURCE}

    assert folders <= {*ROOM_NODES, *FOLDERS_WITHOUT_CODE}


def _by_module(look: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What a look at each module finds, where it finds something. One test looks at all: a test of
    its own for each took longer to collect, in every process, than the look.
    """
    found = {_name(path): look(path) for path in MODULES}
    return {module: each for module, each in found.items() if each}


def test_a_stage_imports_only_stages_before_it_and_the_base_nobody() -> None:
    wrong = _by_module(lambda path: _wrong_imports(_name(path), _imports(_tree(path))))

    assert {module: each for module, each in wrong.items() if module not in OVERVIEWS} == {}


@pytest.mark.parametrize(
    ("module", "statement", "wrong"),
    [
        ("brimful.data.hub", "from brimful.training import loop", True),
        ("brimful.data.hub", "def f():\n    import brimful.report.page.html", True),
        ("brimful.data.hub", "from brimful.cli import app", True),
        ("brimful.data.hub", "from brimful.chains import pipeline", True),
        ("brimful.base.units", "from brimful.recipe import Recipe", True),
        ("brimful.recipe", "from brimful.hardware.device import Device", True),
        (
            "brimful.data.hub",
            (
                "from brimful.planning.plan import Plan\nfrom brimful.base.env import"
                " runs_folder\nimport torch"
            ),
            False,
        ),
        ("brimful.base.units", "from brimful.base.errors import BrimfulError", False),
        (
            "brimful.faces.studio.fit",
            "from brimful.chains.plans import survey\nfrom brimful.report.page.html import write_report",
            False,
        ),
        ("brimful.report.page.html", "from brimful.faces.studio.fit import assess", True),
    ],
)
def test_the_check_of_directions_sees_a_wrong_import(
    module: str, statement: str, wrong: bool
) -> None:
    assert bool(_wrong_imports(module, _imports(ast.parse(statement)))) is wrong


def test_there_is_exactly_one_backward_pass() -> None:
    """Beside that of the loop that `brimful prove` compares ours with."""
    calls = [
        _name(path)
        for path in MODULES
        for node in _nodes(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    ]

    assert sorted(calls) == ["brimful.prove.plain_training", "brimful.training.loop"]


def test_environment_variables_are_read_in_one_module() -> None:
    readers = {
        _name(path)
        for path in MODULES
        for node in _nodes(_tree(path))
        if (
            isinstance(node, ast.Attribute)
            and node.attr in {"environ", "environb", "getenv", "putenv", "unsetenv"}
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {alias.name for alias in node.names} & {"environ", "getenv"}
        )
    }

    assert readers == {"brimful.base.env"}


FORBIDDEN_IMPORTS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load")}


def _unsafe(tree: ast.AST) -> Iterator[str]:
    """What could run code out of a file: pickles, eval and exec."""
    yield from (name for name in _imports(tree) if name.split(".")[0] in FORBIDDEN_IMPORTS)
    for node in _nodes(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in FORBIDDEN_CALLS
        ):
            yield f"{node.value.id}.{node.attr}"
        if isinstance(node, ast.Name) and node.id in {"eval", "exec"}:
            yield node.id
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield "allow_pickle"


def test_nothing_is_read_or_run_that_could_hold_code() -> None:
    assert _by_module(lambda path: list(_unsafe(_tree(path)))) == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(f)",
        "np.load(f)",
        "eval('1')",
        "exec(x)",
        "f(allow_pickle=True)",
    ],
)
def test_the_check_of_safety_sees_what_is_forbidden(code: str) -> None:
    assert list(_unsafe(ast.parse(code)))


def test_calling_eval_on_a_model_is_not_forbidden() -> None:
    assert list(_unsafe(ast.parse("model.eval()\nast.literal_eval(x)"))) == []


def _largest(sizes: dict[str, int]) -> tuple[int, str]:
    return max((size, name) for name, size in sizes.items())


def test_files_and_functions_stay_small() -> None:
    nodes, statements, branches = {}, {}, {}
    for path in MODULES:
        tree = _tree(path)
        nodes[_name(path)] = len(_nodes(tree))
        for function in _functions(tree):
            # Methods of several classes in a file share a name: the largest of them counts.
            name = f"{_name(path)}.{function.name}"
            size = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
            statements[name] = max(size, statements.get(name, 0))
            branches[name] = max(codebase.branches(function), branches.get(name, 0))

    assert _largest(nodes) <= (MAX_FILE_NODES, "~")
    assert _largest(statements) <= (MAX_FUNCTION_STATEMENTS, "~")
    assert _largest(branches) <= (MAX_FUNCTION_BRANCHES, "~")


def test_rooms_stay_within_their_budgets() -> None:
    nodes = Counter[str]()
    for path in MODULES:
        room, *rest = path.relative_to(SOURCE).parts
        if rest and room in ROOM_NODES:
            nodes[room] += len(_nodes(_tree(path)))
    spare = {room: budget - nodes[room] for room, budget in ROOM_NODES.items()}

    assert ROOM_NODES.keys() == {"base", *(stage.partition(".")[0] for stage in STAGES)}
    assert {room: nodes[room] for room in spare if spare[room] < 0} == {}, "larger than agreed"
    assert {room: nodes[room] for room in spare if spare[room] > SPARE_NODES} == {}, "lower these"


KIND_SITES = {
    "evaluation/lm_eval.py": (1, "the harness applies a chat template only for a tuned model"),
    "evaluation/task_prompts.py": (1, "chooses the style of prompts: of a tuned model, or plain"),
    "model/okadfa/modeling.py": (1, "the argument `labels` of transformers' models, no kind"),
    "planning/step.py": (1, "names of recordings from before they named their method"),
    "recipe/kinds.py": (1, "the look-up of a method's kind itself"),
    "recipe/sections.py": (2, "sections `labels` and `feedback` belong to one kind or method"),
    "report/": (
        8,
        "words for a published model that was tuned, also of runs without a readable recipe; one"
        " asks whether a table of labels is there",
    ),
    "runs/": (2, "the look-up of a run's kind, also of runs without a readable recipe"),
}
"""By module or package: how often it asks which kind of run there is (benchmarks/codebase.py), and
why."""
MAX_KIND_SITES = 25


def test_hardly_anything_outside_the_kinds_asks_which_kind_of_run_there_is() -> None:
    sites = codebase.all_kind_sites(ROOT)
    places = [
        next((place for place in KIND_SITES if site.startswith(place)), site) for site in sites
    ]

    more = {
        place: count
        for place, count in Counter(places).items()
        if count > KIND_SITES.get(place, (0, ""))[0]
    }
    assert more == {}, "ask a trait of the kind instead (brimful/recipe/kinds.py)"
    assert len(sites) <= MAX_KIND_SITES


def test_a_class_name_has_one_meaning() -> None:
    assert codebase.names_with_several_meanings(ROOT) == []


def test_lines_stay_within_a_hundred_columns_without_switching_the_formatter_off() -> None:
    switches = ("fmt: " + "skip", "fmt: " + "off")
    found = [
        f"{_name(path)}: {switch}"
        for path in MODULES
        for switch in switches
        if switch in path.read_text(encoding="utf-8")
    ]

    assert found == []


def _silent(tree: ast.Module) -> list[str]:
    """What says not what it is: public functions and classes, and the module itself."""
    public = [
        node
        for node in tree.body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
    ]
    silent = [node.name for node in public if not ast.get_docstring(node)]
    return silent if ast.get_docstring(tree) or not tree.body else [*silent, "the module"]


def test_every_module_and_every_public_function_and_class_in_it_says_what_it_is() -> None:
    assert _by_module(lambda path: _silent(_tree(path))) == {}


@pytest.mark.parametrize(
    ("code", "silent"),
    [
        ("def f():\n    pass", ["f", "the module"]),
        ('"""Says."""\nclass C:\n    pass', ["C"]),
        ('"""Says."""\ndef f():\n    """Says."""\ndef _g():\n    pass', []),
        ("", []),
    ],
)
def test_the_check_of_docstrings_sees_what_says_nothing(code: str, silent: list[str]) -> None:
    assert _silent(ast.parse(code)) == silent


def test_every_module_has_its_tests_in_the_mirrored_place() -> None:
    expected = {
        path.relative_to(SOURCE).as_posix() for path in MODULES if path.name != "__init__.py"
    }
    missing = {
        name
        for name in expected
        if not (ROOT / "tests" / name).with_name(f"test_{Path(name).name}").is_file()
    }

    assert missing - TESTED_ELSEWHERE.keys() == set()
    assert TESTED_ELSEWHERE.keys() <= missing, "an exception that is none any more"


def test_nothing_waits_to_be_done_in_a_comment() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")
    found = [
        f"{path.relative_to(ROOT)}: {mark}"
        for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]
        for mark in marks
        if mark in path.read_text(encoding="utf-8")
    ]

    assert found == []
