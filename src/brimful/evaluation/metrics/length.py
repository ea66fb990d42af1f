"""Tokens of an answer, and the share that ran into the limit, or into a loop, instead of ending."""

from brimful.evaluation.metric import AnswersByExample, Metric, Scores, mean_of_examples


def _score(examples: AnswersByExample) -> Scores:
    tokens = [[float(answer.tokens) for answer in samples] for samples in examples]
    cut = [
        [float(answer.finish in {"length", "loop"}) for answer in samples] for samples in examples
    ]
    summaries = {
        "length": mean_of_examples(tokens, "tokens"),
        "unended": mean_of_examples(cut, "share"),
    }
    return Scores({"length": tokens, "unended": cut}, summaries, [])


METRIC = Metric(
    "Tokens per answer, and the share of answers that did not end by themselves.", _score
)
