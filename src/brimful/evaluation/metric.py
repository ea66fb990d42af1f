"""What a metric is: a pure function from answers to scores, and a summary with an interval. Metrics
are the files of `metrics/`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.base.discover import module_in, names_in
from brimful.base.intervals import Interval, bounds_of
from brimful.base.types import JsonDict
from brimful.evaluation.stats import example_interval
from brimful.generation.requests import Finish

METRICS_PACKAGE = "brimful.evaluation.metrics"


@dataclass(frozen=True)
class TaskAnswer:
    """One text that a model wrote about one example.

    Attributes:
        completion: The text as written, cut at the first stop string.
        extracted: The part that is judged, such as the code.
        reference: The right answer; where code is taken out of answers, its code.
        finish: Why it ended: end-of-text, a stop string, the most tokens it may have, or a loop.
        tokens: Generated tokens without the stop token.
        status: The sandbox's (passed, failed, error, timeout, blocked) or the verifier's (correct,
            wrong, unparsed) verdict; None where neither judged.
        detail: Its reason.
        value: The final answer as the verifier read it; None where it could not be read, or where
            there is no verifier.
    """

    completion: str
    extracted: str
    reference: str
    finish: Finish
    tokens: int
    status: str | None = None
    detail: str = ""
    value: float | str | None = None


@dataclass(frozen=True)
class MetricSummary:
    """One number about a whole task.

    Attributes:
        value: None where there is no example.
        unit: "share" (0 to 1), "BLEU" and "chrF" (0 to 100), "tokens".
        interval: 95 %; None with fewer than two examples.
        interval_method: "bootstrap" or "Wilson".
        n: Examples.
    """

    value: float | None
    unit: str
    interval: Interval | None
    interval_method: str
    n: int

    def to_json(self) -> JsonDict:
        """Return plain values for evaluations/TASK.json."""
        return {
            "value": self.value,
            "interval": bounds_of(self.interval),
            "interval_method": self.interval_method,
            "n": self.n,
            "unit": self.unit,
        }


@dataclass(frozen=True)
class Scores:
    """A metric's values.

    Attributes:
        of_answers: Scores of the answers by name: examples, and in each its samples. The mean of an
            example's is the example's score.
        summaries: Summaries by name.
        errors: Kind of failure of each answer, "" for none; empty where the metric knows no kinds.
    """

    of_answers: dict[str, list[list[float]]]
    summaries: dict[str, MetricSummary]
    errors: list[list[str]]


AnswersByExample = Sequence[Sequence[TaskAnswer]]
"""Examples, and in each the samples: one, or as many as the task draws."""


@dataclass(frozen=True)
class Metric:
    """A metric, found by the name of its file.

    Attributes:
        description: One line.
        score: Never raises for what a model wrote.
        has_kinds: Whether it is also reported by type of question, where a task has types.
    """

    description: str
    score: Callable[[AnswersByExample], Scores]
    has_kinds: bool = False


def metric_names() -> list[str]:
    """Return the names of all metrics."""
    return names_in(METRICS_PACKAGE, ".py")


def load_metric(name: str) -> Metric:
    """The metric of a name.

    Raises:
        RequestError: there is none; names the nearest.
    """
    metric: Metric = module_in(METRICS_PACKAGE, name, "metric").METRIC
    return metric


def mean_of_examples(of_answers: Sequence[Sequence[float]], unit: str) -> MetricSummary:
    """The mean over examples of each one's mean over samples, with its interval over examples."""
    values_N = [float(np.mean(samples)) for samples in of_answers]
    interval, method = example_interval(values_N, is_share=unit == "share")
    mean = None
    if values_N:
        mean = float(np.mean(values_N))
    return MetricSummary(mean, unit, interval, method, len(values_N))


def likeness(name: str, unit: str, description: str, score: Callable[[str, str], float]) -> Metric:
    """A metric that compares each answer with its reference alone; `score` is given both."""

    def scores(examples: AnswersByExample) -> Scores:
        of_answers = [
            [score(answer.extracted, answer.reference) for answer in samples]
            for samples in examples
        ]
        return Scores({name: of_answers}, {name: mean_of_examples(of_answers, unit)}, [])

    return Metric(description, scores)


def summaries_by_kind(scores: Scores, kinds: Sequence[str]) -> dict[str, MetricSummary]:
    """The scores of each type of question, in the order of first appearance: `accuracy[new-pairs]`
    and so on.

    Args:
        scores: What a metric found.
        kinds: Kind of every example; all empty where the task has no types.
    """
    found = {}
    for name, of_answers in scores.of_answers.items():
        for kind in dict.fromkeys(kind for kind in kinds if kind):
            chosen = [
                samples for samples, each in zip(of_answers, kinds, strict=True) if each == kind
            ]
            found[of_kind(name, kind)] = mean_of_examples(chosen, scores.summaries[name].unit)
    return found


def of_kind(metric: str, kind: str) -> str:
    """What a metric's value on one type of question is called."""
    return f"{metric}[{kind}]"


def split_kind(name: str) -> tuple[str, str]:
    """The metric and the type of question of a name; the type is empty for a value over all
    questions.
    """
    metric, _, kind = name.partition("[")
    return metric, kind.removesuffix("]")
