"""How well an encoder predicts hidden tokens of held-out text from both sides; which ones are
hidden is the same in every run.
"""

import dataclasses

from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.data.masking import MaskingRules, masked_evaluation_batches
from brimful.data.tokens import TokenSplit
from brimful.evaluation.likelihood import Likelihood, Scorer, Scoring


def score_masked(
    model: PreTrainedModel, split: TokenSplit, rules: MaskingRules, how: Scoring, *, context: int
) -> Likelihood:
    """Loss per hidden token over windows that hold every token of a split but the very first once.

    Args:
        model: encoder with a head for masked tokens on the device; put in eval mode for the call
            and put back after.
        split: tokens.
        rules: how tokens are hidden; their seed does not count.
        how: see `Scoring`; progress is told in tokens of the text.
        context: positions of a window, [CLS] included.

    Raises:
        RequestError: nothing to score, or not even one window fits into memory.
    """
    if len(split.tokens_N) < 2:
        raise RequestError(
            f"the split has {len(split.tokens_N)} tokens; at least 2 are needed to hide one. Give"
            " it more text."
        )
    scorer = Scorer(model, how, sparse=True)
    nats_N, tokens_N = scorer.score_all(
        masked_evaluation_batches(split, context, how.batch_size, rules, how.max_windows),
        lambda batch: len(batch.inputs_BT) * (context - 1),
        len(split.tokens_N) - 1,
    )
    # The last window may hold the end of a document alone.
    has_targets_N = tokens_N > 0
    if not has_targets_N.any():
        raise RequestError(
            "the split holds only empty documents, so no token can be masked and scored. Add"
            " documents with text to it."
        )
    scored = scorer.summarised(
        nats_N[has_targets_N], tokens_N[has_targets_N], 0, split.num_documents, context, context
    )
    return dataclasses.replace(scored, masked_share=rules.share)
