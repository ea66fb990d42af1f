"""The loss that a run is judged by, and the counting baselines beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from brimful.base.types import Bounds
from brimful.report.quantities import label
from brimful.runs.folder import RunFolder
from brimful.runs.records import EvaluationRecord
from brimful.runs.scores import BaselineScore, LikelihoodScore

BASELINE_NAMES = {"uniform": "Uniform guess", "unigram": "Unigram", "bigram": "Bigram"}


@dataclass(frozen=True)
class SplitScore:
    """What a model reaches on a split: nats per token and bits per byte, with 95 % intervals where
    known.
    """

    name: str
    loss: float | None
    bits_per_byte: float | None
    loss_interval: Bounds | None = None
    bits_per_byte_interval: Bounds | None = None


def split_score(name: str, record: LikelihoodScore | EvaluationRecord) -> SplitScore:
    """Return the score of a record under this name."""
    return SplitScore(
        name,
        record.loss,
        record.bits_per_byte,
        record.loss_interval,
        record.bits_per_byte_interval,
    )


def main_score(run: RunFolder) -> SplitScore | None:
    """Return the final validation score, or another split's where there is none; before the end,
    the best of the evaluations so far.
    """
    splits = run.scores.likelihood
    if splits:
        split = "validation" if "validation" in splits else next(iter(splits))
        return split_score(split, splits[split])
    best = best_evaluation(run)
    return split_score(f"{best.split}, step {best.step}", best) if best else None


def best_evaluation(run: RunFolder) -> EvaluationRecord | None:
    """Return the first evaluation while training with the least objective, or loss where it has no
    objective; None before the first.
    """
    known = [each for each in run.evaluations if each.loss is not None]
    known = [each for each in known if each.minimized is not None]
    return min(known, key=lambda each: each.minimized or 0.0, default=None)


def baselines(run: RunFolder) -> list[SplitScore]:
    """Return what counting alone reaches on the tokens of the main score, the weakest first."""
    model = main_score(run)
    own = run.scores.likelihood.get(model.name) if model else None
    return (baselines_of(own) if own else []) or _named(run.scores.baselines)


def baselines_of(score: LikelihoodScore) -> list[SplitScore]:
    """Return the baselines beside one split's score, the weakest first.

    One that states only its loss gets its bits per byte from the score's own ratio, as both are
    over the same tokens.
    """
    ratio = None
    if score.loss and score.bits_per_byte is not None:
        ratio = score.bits_per_byte / score.loss
    return _named(score.baselines, ratio)


def _named(records: Mapping[str, BaselineScore], ratio: float | None = None) -> list[SplitScore]:
    scores = []
    for name, each in records.items():
        bits = each.bits_per_byte
        if bits is None and ratio is not None and each.loss is not None:
            bits = each.loss * ratio
        if each.loss is not None or bits is not None:
            scores.append(SplitScore(BASELINE_NAMES.get(name, label(name)), each.loss, bits))
    return sorted(scores, key=lambda score: -(score.loss or score.bits_per_byte or 0.0))
