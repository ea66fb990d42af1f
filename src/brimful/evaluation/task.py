"""What a task is: one YAML file of `tasks/`, found by its name. Data, prompts, sampling, extraction
and metrics; nothing of a model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import resources
from typing import Annotated, Any, Literal

import jinja2
import pydantic
import xxhash
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field

from brimful.base.discover import did_you_mean
from brimful.base.dotted import override, parse_yaml
from brimful.base.errors import DataError, RequestError
from brimful.base.problems import problem_lines
from brimful.base.types import JsonDict
from brimful.data.builtin import SPLIT_ROWS
from brimful.evaluation.metric import metric_names
from brimful.recipe import EvaluationRecipe
from brimful.recipe.base import NotNegative, PositiveInt, PositiveShare, Section
from brimful.verify.extract import EXTRACTIONS, code_of, parses
from brimful.verify.verifier import Verifier, load_verifier, verifier_names

TASKS_PACKAGE = "brimful.evaluation"
TASKS_FOLDER = "tasks"
LM_EVAL = "lm-eval:"
"""What stands before the name of a task of EleutherAI's lm-evaluation-harness."""
SAME_AS = "same_as"
"""Key of a file that inherits every value it does not set from another task."""

Row = Mapping[str, Any]


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.tests["python"] = lambda text: parses(code_of(text)).parses
    environment.filters["short_hash"] = short_hash
    environment.filters["as_comment"] = _as_comment
    return environment


def short_hash(text: object) -> str:
    """Return eight hexadecimal digits that identify a text."""
    return xxhash.xxh3_64_hexdigest(str(text).encode())[:8]


def _as_comment(text: object) -> str:
    return "\n".join(f"# {line}".rstrip() for line in str(text).strip().splitlines())


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that does not exist, with the nearest one and all there are."""
    names = list(known)
    return f"unknown {kind} {name!r}{did_you_mean(name, names)} Known: {', '.join(names)}"


def _known(kind: str, names: Callable[[], Iterable[str]]) -> pydantic.AfterValidator:
    """A validator of fields that hold one of these names."""

    def check(value: str) -> str:
        if value not in names():
            raise ValueError(unknown_name(kind, value, names()))
        return value

    return pydantic.AfterValidator(check)


@lru_cache(maxsize=256)
def _template(text: str) -> jinja2.Template:
    return _environment().from_string(text)


@lru_cache(maxsize=256)
def _expression(text: str) -> Callable[[Row], object]:
    return _environment().compile_expression(text, undefined_to_none=False)


class TaskData(Section):
    """Where the examples are: exactly one of `hub`, `builtin`, `file` and `run`; beside `file`,
    `builtin` may give the solved examples.
    """

    hub: str | None = Field(None, description="Hub id.")
    config: str | None = Field(None, description="Configuration of the hub data set.")
    builtin: str | None = Field(None, description="A built-in corpus with splits.")
    file: str | None = Field(
        None,
        description=(
            "In words, the file that must be given (evaluation.data): there is no other source."
        ),
    )
    splits: list[str] = Field(
        [],
        description=(
            "Splits of hub data or of a built-in corpus that are read, one behind the other."
        ),
    )
    shot_splits: list[str] = Field(
        [], description="Splits whose first rows are the solved examples; none of them is scored."
    )
    run: Literal["validation", "test"] | None = Field(
        None, description="The split of the run's own examples that is scored."
    )
    columns: dict[str, str] = Field(
        {}, description="Other names of columns, such as {text: prompt}."
    )
    scored: str = Field(
        "true", description="Jinja expression of the columns: which rows of `splits` are scored."
    )
    shots: str = Field(
        "false",
        description=(
            "Jinja expression: which other rows of `splits` are solved examples. Unused with `run`."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _one_place(self) -> "TaskData":
        if [self.hub, self.file or self.builtin, self.run].count(None) != 2:
            raise ValueError("give exactly one of data.hub, data.builtin, data.file and data.run")
        if not (self.file or self.run or self.splits):
            raise ValueError("name the splits that are read: data.splits")
        if self.builtin is not None and self.builtin not in SPLIT_ROWS:
            raise ValueError(unknown_name("built-in corpus", self.builtin, SPLIT_ROWS))
        return self


class Prompt(Section):
    """How a model is asked, and how its answer is read."""

    text: str | None = Field(
        None,
        description=(
            "Jinja template of the row's columns; null: the run's own examples, asked as in"
            " training."
        ),
    )
    stop: list[str] = Field(
        [], description="Texts before which an answer is cut; generation ends there."
    )
    extraction: Annotated[str, _known("extraction", lambda: EXTRACTIONS)] | None = Field(
        "code",
        description=(
            "How code is taken out of an answer: a name of extract.EXTRACTIONS; null: the verifier"
            " reads it as it is."
        ),
    )


class PlainPrompt(Prompt):
    """Prompt for an untuned model: text to continue, solved examples before it."""

    text: str = Field(
        description="Jinja template of the row's columns; ends where the model goes on."
    )
    shot: str | None = Field(None, description="Jinja template of a solved example's columns.")
    shots: Annotated[int, Field(ge=0)] = Field(
        0, description="Solved examples before the question."
    )

    @pydantic.model_validator(mode="after")
    def _shots_have_a_form(self) -> "PlainPrompt":
        if self.shots and self.shot is None:
            raise ValueError("shots above 0 need the template `shot`")
        return self


class TaskSampling(Section):
    """How answers are drawn."""

    max_new_tokens: PositiveInt = Field(512, description="Tokens of an answer at most.")
    samples: PositiveInt = Field(1, description="Answers per example; n of pass@k.")
    temperature: NotNegative = Field(0.0, description="0 is greedy.")
    top_k: PositiveInt | None = Field(None, description="Sample among the k likeliest tokens.")
    top_p: PositiveShare = Field(
        1.0, description="Sample among the likeliest tokens that hold this much probability."
    )

    @pydantic.model_validator(mode="after")
    def _samples_differ(self) -> "TaskSampling":
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                "several samples of a greedy answer are all the same: set a temperature above 0,"
                " such as 0.8"
            )
        return self


class Task(Section):
    """A task as its file describes it."""

    name: str
    version: PositiveInt = Field(
        description="Raised when scores before and after a change cannot be compared."
    )
    description: str
    source: str = Field(description="Where data, prompts and figures come from.")
    data: TaskData
    id: str = Field(description="Jinja template: what an example is called.")
    reference: str = Field(description="Jinja template: what would have been right.")
    template: Prompt = Field(description="For a tuned model: one user message.")
    plain: PlainPrompt = Field(description="For an untuned model.")
    sampling: TaskSampling = TaskSampling()
    kind: str | None = Field(
        None,
        description=(
            "Jinja template: what type of question an example is; scores are told by type, too."
        ),
    )
    verifier: Annotated[str, _known("verifier", verifier_names)] | None = Field(
        None, description="How answers are judged: a file of brimful/verify/kinds."
    )
    metrics: list[Annotated[str, _known("metric", metric_names)]]
    same_data_as: str | None = Field(
        None,
        description=(
            "Set for a file with `same_as` and no data of its own: that task's path serves this"
            " one, too."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _metrics_suit_the_verifier(self) -> "Task":
        metrics = (("accuracy", "final answers", False), ("pass_at_k", "programs", True))
        for metric, kind, runs_programs in metrics:
            suits = self.verifier is not None and self.needs_sandbox is runs_programs
            if metric in self.metrics and not suits:
                raise ValueError(
                    f"metric {metric} counts what a verifier of {kind} says; verifier"
                    f" {self.verifier} is none"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _templates_are_templates(self) -> "Task":
        for text in (
            self.id,
            self.reference,
            self.kind,
            self.template.text,
            self.plain.text,
            self.plain.shot,
        ):
            _template(text or "")
        for expression in (self.data.scored, self.data.shots):
            _expression(expression)
        if self.data.run is None and self.template.text is None:
            raise ValueError(
                "template.text is needed: only the run's own examples bring their prompts with them"
            )
        return self

    @cached_property
    def request(self) -> str:
        """Equal for tasks that ask a model the same questions: they share the answers."""
        return self.model_dump_json(
            include={"data", "id", "reference", "kind", "template", "plain", "sampling"}
        )

    @cached_property
    def judge(self) -> Verifier | None:
        """Its verifier; None where answers are not judged right or wrong.

        Raises:
            RequestError: what the verifier needs is not installed.
        """
        if self.verifier is None:
            return None
        return load_verifier(self.verifier)

    @property
    def needs_sandbox(self) -> bool:
        """Whether its answers are programs to run."""
        return self.judge is not None and self.judge.needs_sandbox


def task_names() -> list[str]:
    """The tasks there are."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in resources.files(TASKS_PACKAGE).joinpath(TASKS_FOLDER).iterdir()
        if entry.name.endswith(".yaml")
    )


def load_task(name: str, overrides: list[str] | tuple[str, ...] = ()) -> Task:
    """The task of a name, with `dotted.key=value` overrides such as `sampling.samples=20`.

    Raises:
        RequestError: no such task (names the nearest), or values that break its rules.
    """
    values = _values(name)
    problems = []
    for assignment in overrides:
        try:
            override(assignment, values, {})
        except ValueError as error:
            problems.append(str(error))
    try:
        task = Task.model_validate({"name": name, **values})
    except pydantic.ValidationError as error:
        problems += problem_lines(error, Task)
    except jinja2.TemplateSyntaxError as error:
        problems.append(f"a template: {error}")
    if problems:
        raise RequestError(f"task {name}: {'; '.join(problems).rstrip('.')}.")
    return task


def _values(name: str) -> JsonDict:
    """The file's values, over those of the task it is the same as."""
    if name not in task_names():
        raise RequestError(f"{unknown_name('task', name, task_names())}; or lm-eval:TASK.")
    file = resources.files(TASKS_PACKAGE).joinpath(TASKS_FOLDER, f"{name}.yaml")
    values: JsonDict = parse_yaml(file.read_text(encoding="utf-8"))
    base = values.pop(SAME_AS, None)
    if base is None:
        return values
    if "data" not in values:
        values["same_data_as"] = base
    return _values(base) | values


def render(template: str, row: Row, where: str) -> str:
    """A template filled with a row's columns.

    Raises:
        DataError: the row lacks a column; says which there are.
    """
    try:
        return _template(template).render(row)
    except (jinja2.UndefinedError, TypeError) as error:
        raise _not_fitting(error, row, where) from error


def holds(expression: str, row: Row, where: str) -> bool:
    """Whether an expression is true of a row.

    Raises:
        DataError: as `render`.
    """
    try:
        return bool(_expression(expression)(row))
    except (jinja2.UndefinedError, TypeError) as error:
        raise _not_fitting(error, row, where) from error


def _not_fitting(error: Exception, row: Row, where: str) -> DataError:
    return DataError(
        f"{where}: {str(error).rstrip('.')}. Its columns are {', '.join(row)}. Are these the task's"
        " data?"
    )


def task_changes(rules: EvaluationRecipe) -> tuple[str, ...]:
    """Return what a recipe changes of its tasks, as overrides of a task's keys."""
    keys = {
        "sampling.max_new_tokens": rules.max_new_tokens,
        "sampling.samples": rules.samples,
        "sampling.temperature": rules.temperature,
        "plain.shots": rules.shots,
    }
    return tuple(f"{key}={value}" for key, value in keys.items() if value is not None)


def checked_tasks(
    tasks: Sequence[str], overrides: tuple[str, ...] = ()
) -> tuple[list[Task], list[str]]:
    """Return our own tasks, and those of lm-eval by name; raise RequestError for an unknown one."""
    own = [load_task(name, overrides) for name in tasks if not name.startswith(LM_EVAL)]
    return own, [name.removeprefix(LM_EVAL) for name in tasks if name.startswith(LM_EVAL)]
