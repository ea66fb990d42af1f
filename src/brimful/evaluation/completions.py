"""How well a model predicts held-out answers: the loss over target tokens of whole examples, each
example scored once.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.data.batches import Batch
from brimful.data.example_batches import evaluation_batches
from brimful.data.examples import ExampleSplit
from brimful.data.sequences import PAD_MULTIPLE
from brimful.evaluation.likelihood import Likelihood, Scorer, Scoring


def score_examples(
    model: PreTrainedModel, split: ExampleSplit, how: Scoring, *, budget_tokens: int
) -> Likelihood:
    """Score the targets of a split's examples, similar lengths together; no logits are made where
    there is no target.

    The result's windows are examples, in the order of the split.

    Args:
        model: causal LM on the device without a head bias; put in eval mode for the call and put
            back after.
        split: held-out examples.
        how: see `Scoring`; the budget takes the place of its batch size, and progress is told in
            examples.
        budget_tokens: padded tokens per forward pass to begin with.

    Raises:
        RequestError: nothing to score, or memory does not hold one example.
    """
    count = min(how.max_windows or split.num_examples, split.num_examples)
    if not count:
        raise RequestError("the split holds no examples, so there is nothing to score.")
    numbers: list[int] = []
    widths: list[int] = []

    def batches() -> Iterator[Batch]:
        for micro, chosen in evaluation_batches(split, budget_tokens, how.max_windows):
            numbers.extend(chosen)
            widths.append(micro.inputs_BT.shape[1])
            yield Batch(micro.inputs_BT, micro.targets_BT)

    most = max(1, budget_tokens // PAD_MULTIPLE)
    scorer = Scorer(model, replace(how, batch_size=most, max_windows=None), sparse=True)
    nats_N, tokens_N = scorer.score_all(batches(), lambda batch: len(batch.inputs_BT), count)
    order = np.argsort(numbers)
    order = order[tokens_N[order] > 0]
    num_bytes = split.num_bytes * int(tokens_N.sum()) / split.num_target_tokens
    longest = max(widths)
    return scorer.summarised(
        nats_N[order], tokens_N[order], num_bytes, split.num_examples, longest, longest
    )
