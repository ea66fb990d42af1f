"""How well a model predicts held-out answers: the loss over target tokens of whole examples, each
example scored once.
"""

import time

import numpy as np
import torch
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.data.batches import IGNORED, Batch
from brimful.data.example_batches import evaluation_batches
from brimful.data.examples import ExampleSplit
from brimful.data.sequences import PAD_MULTIPLE
from brimful.evaluation.likelihood import Likelihood, Progress, Scorer, summarise
from brimful.generation.engine import eval_mode
from brimful.training.shared_work import is_own, merged_numbers
from brimful.training.world import ALONE, World


def score_examples(
    model: PreTrainedModel,
    split: ExampleSplit,
    *,
    budget_tokens: int,
    chunk_tokens: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None = None,
    max_examples: int | None = None,
    progress: Progress | None = None,
    world: World = ALONE,
) -> Likelihood:
    """Score the targets of a split's examples, similar lengths together; no logits are made where
    there is no target.

    The result's windows are examples, in the order of the split. When memory runs out fewer
    examples go through at once.

    Args:
        model: A causal LM on `device` without a head bias; put in eval mode for the call and put
            back after.
        split: Held-out examples.
        budget_tokens: Padded tokens per forward pass to begin with.
        chunk_tokens: Positions per chunk of logits.
        device: Where the batches go.
        autocast_dtype: Autocast to this dtype, None for none.
        max_examples: Score at most this many, spread evenly.
        progress: Told after every batch, in examples.
        world: Ranks that hold the whole model and share the batches.

    Raises:
        RequestError: nothing to score, or memory does not hold one example.
    """
    started_s = time.perf_counter()
    if not split.num_examples:
        raise RequestError("the split holds no examples, so there is nothing to score.")
    nats_E, tokens_E = np.full(split.num_examples, np.nan), np.zeros(split.num_examples, np.int64)
    scored: dict[int, torch.Tensor] = {}
    order: list[int] = []
    longest = done = 0
    total, most = split.num_examples, max(1, budget_tokens // PAD_MULTIPLE)
    with eval_mode(model):
        scorer = Scorer(model, device, autocast_dtype, chunk_tokens, most, sparse=True)
        batches = evaluation_batches(split, budget_tokens, max_examples)
        for place, (micro, numbers) in enumerate(batches):
            if is_own(world, place):
                nats = scorer.score(Batch(micro.inputs_BT, micro.targets_BT))
                scored[place] = torch.cat(nats).cpu()
            order.extend(numbers)
            tokens_E[numbers] = (micro.targets_BT != IGNORED).sum(1).numpy()
            longest, done = max(longest, micro.inputs_BT.shape[1]), done + len(numbers)
            if progress is not None:
                progress("evaluate", done, min(max_examples or total, total))
    nats_E[order] = merged_numbers(world, scored)
    scored_E = tokens_E > 0
    tokens = int(tokens_E.sum())
    num_bytes = split.num_bytes * tokens / split.num_target_tokens
    seconds, sizes = time.perf_counter() - started_s, tuple(scorer.batch_sizes)
    return summarise(
        nats_E[scored_E],
        tokens_E[scored_E],
        num_bytes,
        split.num_examples,
        seconds,
        context=longest,
        stride=longest,
        batch_sizes=sizes,
    )
