"""How well a model predicts held-out text: loss, perplexity, bits per byte; every token scored
once.

Shapes: B windows of a batch, T positions, D hidden size, V vocabulary, N windows in all.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from brimful.base.arrays import Floats, Ints
from brimful.base.errors import RequestError
from brimful.base.intervals import Interval, bounds_of
from brimful.base.rundir import finite_record
from brimful.base.types import JsonDict, Numbers, Progress
from brimful.data.batches import IGNORED, Batch, MicroBatch
from brimful.data.masking import MaskedBatch
from brimful.data.sequences import evaluation_batches
from brimful.data.tokens import TokenSplit
from brimful.evaluation.stats import mean_interval, perplexity_of
from brimful.model.blocks import context_of, eval_mode
from brimful.training.losses import token_losses
from brimful.training.memory_errors import (
    OutOfMemory,
    attempt,
    give_back_memory,
    refuse_to_halve_in_parts,
)
from brimful.training.method import Network, hidden_states_of
from brimful.training.precision import autocast
from brimful.training.shared_work import is_own, merged_numbers
from brimful.training.world import ALONE, World

MASKED = "masked"
"""`kind` of the record of a masked loss."""
_OF_TEXTS = frozenset(
    {
        "perplexity",
        "perplexity_per_word",
        "bits_per_byte",
        "bits_per_byte_interval",
        "bytes",
        "words",
        "stride",
    }
)
"""What only the likelihood of whole texts has."""
_OF_SAMPLES = ("loss", "loss_interval", "seconds", "batch_sizes", "windows")
"""Keys of the record that scores of pairs and of answers have, too."""


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """Scores of one model on one split.

    Attributes:
        loss: Nats per target token, end-of-text tokens included.
        perplexity: exp(loss). Comparable only between models with the same tokenizer.
        bits_per_byte: All nats, those of end-of-text included, in bits, over the UTF-8 bytes of the
            text. Comparable between tokenizers.
        loss_interval: 95 % bootstrap interval over windows of held-out text; None when there is one
            window only or the loss is not finite.
        bits_per_byte_interval: The same in bits per byte.
        tokens: Target tokens scored.
        bytes: UTF-8 bytes they stand for; estimated when only some windows were scored.
        words: Likewise, parted by white space; None where they were not counted.
        documents: Documents in the split (all of it).
        seconds: Wall time of scoring.
        context: Longest input of the model here.
        stride: New tokens per window; below `context`, each window re-reads `context - stride`
            tokens unscored.
        windows: N.
        batch_sizes: Windows per forward pass: those asked for, then each smaller number that memory
            forced.
        window_nats_N: Nats per window, to compare runs with `stats.paired_difference`.
        window_tokens_N: Target tokens per window.
        named: Means of further values of the samples that were scored, such as pairs of answers.
            With any, a window is a sample, the loss is per sample, and the record leaves out what
            only texts have. Empty for texts.
        accuracy_interval: 95 % bootstrap interval, over the samples, of those that are told right.
        masked_share: Share of tokens that were hidden and predicted from both sides; None: each
            from the tokens before it. A masked loss says nothing of how likely a text is (Wang and
            Cho 2019), so its record holds neither perplexity nor bits per byte.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    loss_interval: Interval | None
    bits_per_byte_interval: Interval | None
    tokens: int
    bytes: int
    documents: int
    seconds: float
    context: int
    stride: int
    windows: int
    batch_sizes: tuple[int, ...]
    window_nats_N: Floats = dataclasses.field(repr=False, compare=False)
    window_tokens_N: Ints = dataclasses.field(repr=False, compare=False)
    masked_share: float | None = None
    words: int | None = None
    named: Numbers = dataclasses.field(default_factory=dict)
    accuracy_interval: Interval | None = None

    @property
    def perplexity_per_word(self) -> float | None:
        """exp of all nats, those of end-of-text included, per word; comparable between tokenizers,
        as bits per byte.
        """
        if not self.words:
            return None
        return perplexity_of(self.loss * self.tokens / self.words)

    @property
    def tokens_per_second(self) -> float:
        if not self.seconds:
            return 0.0
        return self.tokens / self.seconds

    def to_json(self) -> JsonDict:
        """The record of scores.json, made finite as in the journal (see `finite_record`)."""
        record: JsonDict = {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "loss_interval": bounds_of(self.loss_interval),
            "bits_per_byte_interval": bounds_of(self.bits_per_byte_interval),
            "tokens": self.tokens,
            "bytes": self.bytes,
            "documents": self.documents,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "context": self.context,
            "stride": self.stride,
            "windows": self.windows,
            "batch_sizes": list(self.batch_sizes),
        }
        if self.words:
            record |= {"words": self.words, "perplexity_per_word": self.perplexity_per_word}
        if self.masked_share is not None:
            kept = {key: value for key, value in record.items() if key not in _OF_TEXTS}
            record = {"kind": MASKED, "masked_share": self.masked_share, **kept}
        if self.named:
            kept = {key: value for key, value in record.items() if key in _OF_SAMPLES}
            interval = bounds_of(self.accuracy_interval)
            record = {**kept, "named": dict(self.named), "accuracy_interval": interval}
        return finite_record(record)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a split is scored. Never are more than `chunk_tokens` x V logits held. When memory runs
    out the batch size is halved, as often as it takes, and only what failed is scored again.

    Attributes:
        chunk_tokens: positions with a target per chunk of logits.
        device: where the model is and the batches go.
        batch_size: windows per forward pass to begin with.
        autocast_dtype: type of the matrix products under autocast; None for none.
        max_windows: number of windows (or examples) to score at most, spread evenly; None for all.
        progress: what is told after every batch.
        world: ranks that hold the whole model and share the batches.
    """

    chunk_tokens: int
    device: torch.device
    batch_size: int = 1
    autocast_dtype: torch.dtype | None = None
    max_windows: int | None = None
    progress: Progress | None = None
    world: World = ALONE


def score_split(
    model: PreTrainedModel,
    split: TokenSplit,
    how: Scoring,
    *,
    context: int,
    stride: int | None = None,
) -> Likelihood:
    """Score a split; all of its tokens but the first are targets exactly once.

    Args:
        model: causal LM on the device without a head bias; put in eval mode for the call and put
            back after.
        split: tokens, and how many bytes of text they stand for. Where only some windows are
            scored, `bytes` is the tokens scored times the split's bytes per token.
        how: see `Scoring`; progress is told in target tokens.
        context: tokens per window, at most what the model reads.
        stride: new tokens per window, 1 to `context`; None is `context`: windows end to end.

    Raises:
        RequestError: context, stride or batch size out of range, nothing to score, a head bias, or
            not even one window fits into memory.
    """
    if stride is None:
        stride = context
    _check_request(model, split, context, stride, how.batch_size)
    scorer, num_targets = Scorer(model, how), len(split.tokens_N) - 1
    nats_N, tokens_N = scorer.score_all(
        evaluation_batches(split, context, stride, how.batch_size, how.max_windows),
        lambda batch: batch.num_target_tokens,
        num_targets,
    )
    share = int(tokens_N.sum()) / num_targets
    likelihood = scorer.summarised(
        nats_N, tokens_N, split.num_bytes * share, split.num_documents, context, stride
    )
    return dataclasses.replace(likelihood, words=round(split.num_words * share) or None)


class Scorer:
    """Nats per window; remembers the batch size that fits.

    Args:
        model: language model on the device without a head bias.
        how: see `Scoring`.
        sparse: whether many positions have no target: no logits are made for them.
    """

    def __init__(self, model: PreTrainedModel, how: Scoring, *, sparse: bool = False) -> None:
        self._model, self._how, self._sparse = model, how, sparse
        self._network = Network(model, hidden_states_of(model), how.chunk_tokens)
        self._head_VD = self._network.head_weight_VD
        self._device, self._autocast_dtype = how.device, how.autocast_dtype
        self._started_s = time.perf_counter()
        self.batch_sizes = [how.batch_size]
        """The one asked for, then each smaller one that memory forced; the last holds."""

    def score_all(
        self, batches: Iterable[Batch], done_with: Callable[[Batch], int], num: int
    ) -> tuple[Floats, Ints]:
        """Return nats and target tokens of the windows of all batches, each scored by one rank in
        eval mode.

        Args:
            batches: what is scored.
            done_with: how much of `num` a batch is.
            num: all that there is to score, as progress is told.
        """
        how, nats, done = self._how, dict[int, Tensor](), 0
        tokens: list[Ints] = []
        total = num if how.max_windows is None else None
        with eval_mode(self._model):
            for number, batch in enumerate(batches):
                if is_own(how.world, number):
                    nats[number] = torch.cat(self.score(batch))
                tokens.append((batch.targets_BT != IGNORED).sum(1).numpy())
                done += done_with(batch)
                if how.progress is not None:
                    how.progress("evaluate", min(done, num), total)
        return merged_numbers(how.world, nats), np.concatenate(tokens)

    def summarised(
        self,
        nats_N: Floats,
        tokens_N: Ints,
        num_bytes: float,
        documents: int,
        context: int,
        stride: int,
    ) -> Likelihood:
        """The likelihood of what this scored; see `summarise`."""
        return summarise(
            nats_N,
            tokens_N,
            num_bytes,
            documents,
            time.perf_counter() - self._started_s,
            context=context,
            stride=stride,
            batch_sizes=tuple(self.batch_sizes),
        )

    def score(self, batch: Batch) -> list[Tensor]:
        """Nats of the windows of a batch, in pieces of at most the batch size that fits; nothing is
        copied back to the host here.

        Raises:
            RequestError: memory does not hold one window.
            CannotHalveAlone: it does not hold the batch, and the model lies in parts on several
                ranks.
        """
        nats: list[Tensor] = []
        start = 0
        while start < len(batch.inputs_BT):
            micro = self._piece(batch, slice(start, start + self.batch_sizes[-1]))
            nats_B = attempt(partial(self.nats, micro))
            if isinstance(nats_B, OutOfMemory):
                self._halve(micro.inputs_BT, nats_B)
                continue
            nats.append(nats_B)
            start += len(nats_B)
        return nats

    def _halve(self, inputs_BT: Tensor, failure: OutOfMemory) -> None:
        give_back_memory(self._device)
        windows, tokens = inputs_BT.shape
        if windows == 1:
            raise RequestError(
                f"out of memory{failure}: not even one window of {tokens} tokens can be scored in"
                f" chunks of {self._network.loss_chunk}. Free memory that other programs hold, or"
                " set plan.loss_chunk lower."
            )
        smaller = -(-windows // 2)
        refuse_to_halve_in_parts(self._model, failure, windows, smaller)
        self.batch_sizes.append(smaller)

    def _piece(self, batch: Batch, rows: slice) -> MicroBatch:
        targets_BT, scored_N, mask_BT = batch.targets_BT[rows], None, None
        if self._sparse:
            scored_N = (targets_BT.flatten() != IGNORED).nonzero()[:, 0]
        if isinstance(batch, MaskedBatch) and batch.mask_BT is not None:
            mask_BT = batch.mask_BT[rows]
        return MicroBatch(batch.inputs_BT[rows], targets_BT, scored_N, mask_BT=mask_BT)

    def nats(self, micro: MicroBatch) -> Tensor:
        """Nats of each row, all at once, however much memory that takes; no logits are made where
        `scored_N` names no position.
        """
        micro = micro.to(self._device)
        num_rows, length = micro.inputs_BT.shape
        with torch.no_grad(), autocast(self._device, self._autocast_dtype):
            hidden, targets = self._network.hidden_states(micro), micro.targets_BT
            if micro.scored_N is not None:
                hidden, targets = (
                    hidden.flatten(0, 1)[micro.scored_N],
                    targets.flatten()[micro.scored_N],
                )
            # By name: whether a bare argument outlives the call depends on the interpreter.
            hidden = self._network.before_head(hidden)
            if self._autocast_dtype is not None:
                hidden = hidden.to(self._autocast_dtype)
            chunk, softcap = self._network.loss_chunk, self._network.logit_softcap
            losses = token_losses(
                hidden, self._head_VD, targets, chunk_tokens=chunk, softcap=softcap
            )
            if micro.scored_N is None:
                return losses.sum(dim=1)
            return losses.new_zeros(num_rows).index_add_(0, micro.scored_N // length, losses)


def _check_request(
    model: PreTrainedModel, split: TokenSplit, context: int, stride: int, batch_size: int
) -> None:
    longest = context_of(model)
    if not 1 <= context <= longest:
        raise RequestError(
            f"context {context} must be between 1 and {longest}, the positions this model reads."
        )
    if not 1 <= stride <= context:
        raise RequestError(
            f"stride {stride} must be between 1 and context {context}: a larger one would leave"
            " tokens unscored."
        )
    if batch_size < 1:
        raise RequestError(f"batch_size must be at least 1, got {batch_size}.")
    if len(split.tokens_N) < 2:
        raise RequestError(
            f"the split has {len(split.tokens_N)} tokens; at least 2 are needed, the first is only"
            " context. Give it more text."
        )
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise RequestError(
            f"{type(model).__name__} has a bias in its output head; brimful scores heads without"
            " one."
        )


def summarise(
    nats_N: Floats,
    tokens_N: Ints,
    num_bytes: float,
    documents: int,
    seconds: float,
    *,
    context: int,
    stride: int,
    batch_sizes: tuple[int, ...],
) -> Likelihood:
    """The likelihood of N windows (or examples) from nats and target tokens of each.

    Args:
        num_bytes: UTF-8 bytes that all target tokens stand for.
        documents: Number of documents in the whole split.
    """
    tokens, nats = int(tokens_N.sum()), float(nats_N.sum())
    bits_per_byte_per_loss = math.nan
    if num_bytes:
        bits_per_byte_per_loss = tokens / (math.log(2) * num_bytes)
    loss = nats / tokens
    interval = mean_interval(nats_N, tokens_N)
    bits_interval = None
    if interval is not None:
        bits_interval = interval.scaled(bits_per_byte_per_loss)
    return Likelihood(
        loss=loss,
        perplexity=perplexity_of(loss),
        bits_per_byte=loss * bits_per_byte_per_loss,
        loss_interval=interval,
        bits_per_byte_interval=bits_interval,
        tokens=tokens,
        bytes=round(num_bytes),
        documents=documents,
        seconds=seconds,
        context=context,
        stride=stride,
        windows=len(nats_N),
        batch_sizes=batch_sizes,
        window_nats_N=nats_N,
        window_tokens_N=tokens_N,
    )


def of_samples(
    losses_P: Tensor,
    right_P: Tensor,
    named: Numbers,
    *,
    seconds: float,
    context: int,
    batch_sizes: tuple[int, ...],
) -> Likelihood:
    """The scores of P samples, such as pairs of answers, from the loss of each and from whether it
    is told right.

    Args:
        named: Means of further values of the samples.
    """
    one_N = np.ones(len(losses_P), np.int64)
    scores = summarise(
        losses_P.double().numpy(),
        one_N,
        0,
        len(losses_P),
        seconds,
        context=context,
        stride=context,
        batch_sizes=batch_sizes,
    )
    interval = mean_interval(right_P.double().numpy(), one_N)
    return dataclasses.replace(scores, named=named, accuracy_interval=interval)
