"""Many prompts, one batch: prefill once, decode with the KV cache, let finished rows leave, stream text as it comes.

Shapes: B rows still running, T positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.errors import RequestError
from brimful.generation.sampler import SamplingSettings, next_token
from brimful.training.memory_errors import OutOfMemory, attempt, give_back_memory

OnToken = Callable[[int, int], None]
"""Called with (row, token id) the moment a token is drawn; end-of-text is not passed on."""


@dataclass(frozen=True)
class Generation:
    """What one row produced: the new tokens, without the prompt and without the stop token."""

    token_ids: list[int]
    finish: Literal["end_of_text", "length"]


def generate(
    model: PreTrainedModel,
    prompts_ids: list[list[int]],
    settings: SamplingSettings,
    *,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    seeds: list[int],
    on_token: OnToken | None = None,
) -> list[Generation]:
    """Continue every prompt until a stop token or `max_new_tokens`.

    Equal prompts are prefilled once and share the result. A row that outgrows the model's context goes on from the last
    `context // 2` tokens of its own text, read again as if they were the start: older text is forgotten, and nothing else
    changes. Row i draws from its own generator, seeded with seeds[i], so it does not depend on the other rows. When memory runs
    out, half of the running rows go on from the tokens they have, and the others wait for their turn.

    Args:
        model: A causal LM; put in eval mode for the call and put back after.
        prompts_ids: Token ids, at least one each; a text from nothing starts with end-of-text: `[eos]`.
        settings: How tokens are drawn.
        max_new_tokens: Per row, at least 1.
        stop_ids: A row ends, finish "end_of_text", when it draws one of these.
        seeds: One per row; see `sampler.sample_seeds`.
        on_token: Receives tokens as they are drawn, row by row within a step.

    Returns:
        One result per prompt, in order.

    Raises:
        RequestError: empty prompt, prompt longer than the context, unknown token id, no new tokens asked for, logits not finite, or memory
            does not hold one row.
    """
    context = context_of(model)
    _check_request(prompts_ids, seeds, max_new_tokens, context, vocabulary=int(model.config.vocab_size))
    rows = [_Row(index, list(prompt), seed) for index, (prompt, seed) in enumerate(zip(prompts_ids, seeds, strict=True))]
    take = partial(_Row.take, stop_ids=stop_ids, max_new_tokens=max_new_tokens, on_token=on_token)
    most_at_once = len(rows)
    with torch.inference_mode(), _eval_mode(model):
        while waiting := [row for row in rows if row.finish is None]:
            failure = attempt(partial(_finish, model, waiting[:most_at_once], settings, take))
            if failure is not None:
                most_at_once = _fewer([row for row in waiting[:most_at_once] if row.finish is None], failure)
                give_back_memory(model.device)
    return [Generation(row.new_ids, row.finish or "length") for row in rows]


def context_of(model: PreTrainedModel) -> int:
    """Positions the model can read at once."""
    return int(model.config.max_position_embeddings)


@dataclass
class _Row:
    """One prompt on its way. `window` is what the model sees: prompt and new tokens, or their tail."""

    index: int
    window: list[int]
    seed: int
    new_ids: list[int] = field(default_factory=list)
    finish: Literal["end_of_text", "length"] | None = None

    def generator(self) -> torch.Generator:
        """Its own, behind the one number that each of its tokens took."""
        generator = torch.Generator().manual_seed(self.seed)
        torch.rand(len(self.new_ids), generator=generator, dtype=torch.float64)
        return generator

    def take(self, token: int, *, stop_ids: frozenset[int], max_new_tokens: int, on_token: OnToken | None) -> None:
        if token in stop_ids:
            self.finish = "end_of_text"
            return
        self.new_ids.append(token)
        self.window.append(token)
        if on_token is not None:
            on_token(self.index, token)
        if len(self.new_ids) == max_new_tokens:
            self.finish = "length"


def _finish(model: PreTrainedModel, rows: list[_Row], settings: SamplingSettings, take: Callable[[_Row, int], None]) -> None:
    """Draw tokens until every row is finished, from what its window holds."""
    context = context_of(model)
    running = rows
    generators = {row.index: row.generator() for row in rows}
    decoder = _Decoder(model)
    logits_BV: Tensor | None = decoder.prefill([row.window for row in running])
    while logits_BV is not None:
        drawn = next_token(logits_BV, settings, [generators[row.index] for row in running]).tolist()
        for row, token in zip(running, drawn, strict=True):
            take(row, token)
        staying = [position for position, row in enumerate(running) if row.finish is None]
        running = [running[position] for position in staying]
        logits_BV = _advance(decoder, running, staying, context) if running else None


def _fewer(running: list[_Row], failure: OutOfMemory) -> int:
    """Half as many rows as ran when memory ran out."""
    if len(running) == 1:
        raise RequestError(
            f"out of memory{failure} with one text of {len(running[0].window)} tokens. Free memory that other programs hold, or ask for a shorter text."
        )
    return -(-len(running) // 2)


def _advance(decoder: "_Decoder", running: list[_Row], staying: list[int], context: int) -> Tensor:
    """Logits after the newest token of each running row."""
    outgrown = [row for row in running if len(row.window) > context]
    for row in outgrown:
        row.window = row.window[-max(1, context // 2) :]
    if outgrown:
        return decoder.prefill([row.window for row in running])
    decoder.keep(staying)
    return decoder.step([row.window[-1] for row in running])


class _Decoder:
    """The model with its KV cache for a left-padded batch of rows that can shrink."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        self._cache: Any = None
        self._lengths: list[int] = []

    def prefill(self, windows: list[list[int]]) -> Tensor:
        """Forget the cache and read whole windows, equal ones once: logits_BV of their last positions."""
        distinct = list(dict.fromkeys(map(tuple, windows)))
        row_of = {window: row for row, window in enumerate(distinct)}
        source_B = torch.tensor([row_of[tuple(window)] for window in windows], device=self._device)
        longest = max(map(len, distinct))
        padded = [[0] * (longest - len(window)) + list(window) for window in distinct]
        self._lengths = [len(window) for window in distinct]
        self._cache = DynamicCache(config=self._model.config)
        logits_BV = self._forward(padded)
        if len(distinct) < len(windows):
            self._cache.batch_select_indices(source_B)
            logits_BV = logits_BV[source_B]
            self._lengths = [len(window) for window in windows]
        return logits_BV

    def keep(self, positions: list[int]) -> None:
        """Drop all rows but these, their keys and values too."""
        if len(positions) < len(self._lengths):
            self._cache.batch_select_indices(torch.tensor(positions, device=self._device))
            self._lengths = [self._lengths[position] for position in positions]

    def step(self, tokens: list[int]) -> Tensor:
        """Read one more token per row: logits_BV."""
        self._lengths = [length + 1 for length in self._lengths]
        return self._forward([[token] for token in tokens])

    def _forward(self, ids: list[list[int]]) -> Tensor:
        """`self._lengths` already counts the tokens of `ids`, padding excluded."""
        ids_BT = torch.tensor(ids, device=self._device)
        slots = self._cache.get_seq_length() + ids_BT.shape[1]
        padding_B1 = slots - torch.tensor(self._lengths, device=self._device)[:, None]
        slot_T = torch.arange(slots, device=self._device)
        output = self._model(
            input_ids=ids_BT,
            attention_mask=(slot_T >= padding_B1).long() if min(self._lengths) < slots else None,
            position_ids=(slot_T[-ids_BT.shape[1] :] - padding_B1).clamp(min=0),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV


@contextmanager
def _eval_mode(model: PreTrainedModel) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _check_request(prompts_ids: list[list[int]], seeds: list[int], max_new_tokens: int, context: int, vocabulary: int) -> None:
    if len(seeds) != len(prompts_ids):
        raise RequestError(f"{len(prompts_ids)} prompts need as many seeds, got {len(seeds)}.")
    if max_new_tokens < 1:
        raise RequestError(f"max_new_tokens must be at least 1, got {max_new_tokens}.")
    for row, prompt in enumerate(prompts_ids):
        if not prompt:
            raise RequestError(f"prompt {row} has no tokens; start a text from nothing with the end-of-text token.")
        if len(prompt) > context:
            raise RequestError(
                f"prompt {row} has {len(prompt)} tokens, the model reads at most {context}. Shorten the prompt by {len(prompt) - context} tokens, "
                "or train with a larger sequence_length."
            )
        wrong = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise RequestError(f"prompt {row} holds token id {wrong}, the model knows ids 0 to {vocabulary - 1}. Was it made by another tokenizer?")


class TextStream:
    """Token ids in, printable text out, only up to whole characters.

    A byte-level token may hold part of a character; such text is held back until the rest arrives. The pieces and the
    last `flush()` put together equal the decoding of all ids at once (`text_behind`). Special tokens are left out.

    Args:
        tokenizer: Of the ids.
        prompt_ids: What stands before the text.
    """

    _INCOMPLETE = "\N{REPLACEMENT CHARACTER}"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown_ids = list(prompt_ids)
        """Tokens of the newest printed piece, at first of the prompt: see `text_behind`."""
        self._held_ids: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that became whole with this token; "" when it still waits for more."""
        self._held_ids.append(token_id)
        piece = self._piece()
        if piece.endswith(self._INCOMPLETE):
            return ""
        self._shown_ids, self._held_ids = self._held_ids, []
        return piece

    def flush(self) -> str:
        """What is left at the end of the text; a character that never became whole shows as U+FFFD."""
        piece = self._piece()
        self._shown_ids, self._held_ids = self._held_ids, []
        return piece

    def _piece(self) -> str:
        return text_behind(self._tokenizer, self._shown_ids, self._held_ids)


def text_behind(tokenizer: PreTrainedTokenizerBase, before_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """What tokens say behind others. By themselves they could say less: decoders of the SentencePiece kind take the space from a text's first token."""
    before, whole = (
        tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) for ids in ([*before_ids], [*before_ids, *token_ids])
    )
    return str(whole[len(before) :])
