"""Share of answers whose code parses. Nothing written, bare comments and bare docstrings are
failures.
"""

from brimful.evaluation.metric import AnswersByExample, Metric, Scores, TaskAnswer, mean_of_examples
from brimful.verify.extract import parses


def _error(answer: TaskAnswer) -> str:
    """The kind of failure; "unfinished" where the answer was still going on when its tokens ran
    out.
    """
    if not answer.completion.strip():
        return "empty"
    error = parses(answer.extracted).error
    if error and answer.finish in {"length", "loop"}:
        return "unfinished"
    return error


def _score(examples: AnswersByExample) -> Scores:
    errors = [[_error(answer) for answer in samples] for samples in examples]
    valid = [[float(not error) for error in samples] for samples in errors]
    return Scores({"syntax": valid}, {"syntax": mean_of_examples(valid, "share")}, errors)


METRIC = Metric("Share of answers whose code parses (ast.parse), with the kinds of errors.", _score)
