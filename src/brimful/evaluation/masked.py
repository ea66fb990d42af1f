"""How well an encoder predicts hidden tokens of held-out text from both sides; which ones are
hidden is the same in every run.

Shapes: N windows in all.
"""

import dataclasses
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.data.batches import IGNORED
from brimful.data.masking import MaskingRules, masked_evaluation_batches
from brimful.data.tokens import TokenSplit
from brimful.evaluation.likelihood import Likelihood, Progress, Scorer, summarise
from brimful.generation.engine import eval_mode
from brimful.training.shared_work import is_own, merged_numbers
from brimful.training.world import ALONE, World


def score_masked(  # noqa: PLR0913 - each is one independent choice of the measurement
    model: PreTrainedModel,
    split: TokenSplit,
    rules: MaskingRules,
    *,
    context: int,
    batch_size: int,
    chunk_tokens: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None = None,
    max_sequences: int | None = None,
    progress: Progress | None = None,
    world: World = ALONE,
) -> Likelihood:
    """Loss per hidden token over windows that hold every token of a split but the very first once.

    When memory runs out the batch size is halved, as often as it takes, and only the windows that
    failed are scored again.

    Args:
        model: An encoder with a head for masked tokens on `device`; put in eval mode for the call
            and put back after.
        split: The tokens.
        rules: How tokens are hidden; its seed does not count.
        context: Positions of a window, [CLS] included.
        batch_size: Windows per forward pass to begin with.
        chunk_tokens: Hidden tokens per chunk of logits.
        device: Where the batches go.
        autocast_dtype: Autocast to this dtype, None for none.
        max_sequences: Score at most this many windows, spread evenly.
        progress: Told after every batch, in tokens of the text.
        world: Ranks that hold the whole model and share the batches.

    Raises:
        RequestError: nothing to score, or not even one window fits into memory.
    """
    if len(split.tokens_N) < 2:
        raise RequestError(
            f"the split has {len(split.tokens_N)} tokens; at least 2 are needed to hide one. Give"
            " it more text."
        )
    started_s = time.perf_counter()
    scorer = Scorer(model, device, autocast_dtype, chunk_tokens, batch_size, sparse=True)
    nats: dict[int, Tensor] = {}
    window_tokens: list[NDArray[np.int64]] = []
    num_tokens, done = len(split.tokens_N) - 1, 0
    total = None
    if max_sequences is None:
        total = num_tokens
    with eval_mode(model):
        batches = masked_evaluation_batches(split, context, batch_size, rules, max_sequences)
        for number, batch in enumerate(batches):
            if is_own(world, number):
                nats[number] = torch.cat(scorer.score(batch))
            window_tokens.append((batch.targets_BT != IGNORED).sum(1).numpy())
            done = min(done + len(batch.inputs_BT) * (context - 1), num_tokens)
            if progress is not None:
                progress("evaluate", done, total)
    tokens_N, all_nats_N = np.concatenate(window_tokens), merged_numbers(world, nats)
    # The last window may hold the end of a document alone.
    has_targets_N = tokens_N > 0
    if not has_targets_N.any():
        raise RequestError(
            "the split holds only empty documents, so no token can be masked and scored. Add"
            " documents with text to it."
        )
    nats_N = all_nats_N[has_targets_N]
    seconds, sizes = time.perf_counter() - started_s, tuple(scorer.batch_sizes)
    scored = summarise(
        nats_N,
        tokens_N[has_targets_N],
        0,
        split.num_documents,
        seconds,
        context=context,
        stride=context,
        batch_sizes=sizes,
    )
    return dataclasses.replace(scored, masked_share=rules.share)
