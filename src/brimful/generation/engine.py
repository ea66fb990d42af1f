"""Continuous batching: finished texts leave the batch at once, waiting ones enter it, and each
distinct prompt is read once.

Written here and not taken from a library because samples must not depend on the batch they are
drawn in (transformers' own batching is a back end beside it).

A model whose layers all keep a key and a value per position runs on `Slots`; any other (short
windows, recurrent states) on `Groups`. Which of the two is decided by the layers of the cache that
transformers makes for the model's config.

Shapes: B rows still running, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.errors import RequestError
from brimful.generation.copied_weights import Products, copied_weights
from brimful.generation.forward import Forward
from brimful.generation.groups import Groups
from brimful.generation.quick_slots import QuickSlots
from brimful.generation.requests import Finish, Generation, Request, StopRules
from brimful.generation.sampler import (
    SamplingSettings,
    checked,
    logprobs_of,
    next_tokens,
    penalised,
    uniform_numbers,
)
from brimful.generation.slots import Prefilled, Slots
from brimful.generation.text import StopFinder, ends_in_loop
from brimful.hardware import host
from brimful.model.blocks import context_of, eval_mode
from brimful.planning.kv_cache import room_for_rows
from brimful.training.memory_errors import OutOfMemory, attempt, give_back_memory

OnToken = Callable[[int, int, float | None], bool | None]
"""Called with (the request's key, token id, its logprob where asked for) the moment a token is
drawn; stop tokens are not passed on. True ends the text.
"""
LOOKS_FOR_LOOPS_EVERY = 8
"""Tokens; a look takes less than 0.1 ms."""


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
    """Continue every prompt until a stop token or `max_new_tokens`: `Engine.stream` for lists.

    Args:
        model: A causal LM; put in eval mode for the call and put back after.
        prompts_ids: Token ids, at least one each; a text from nothing starts with end-of-text:
            `[eos]`.
        settings: How tokens are drawn.
        max_new_tokens: Most new tokens of a row, at least 1.
        stop_ids: A row ends, finish "end_of_text", when it draws one of these.
        seeds: One per row; see `sampler.sample_seeds`.
        on_token: Receives (row, token, None) as tokens are drawn, row by row within a step.

    Returns:
        One result per prompt, in order.

    Raises:
        RequestError: as `Engine.stream`.
    """
    if len(seeds) != len(prompts_ids):
        raise RequestError(f"{len(prompts_ids)} prompts need as many seeds, got {len(seeds)}.")
    requests = [
        Request(row, tuple(ids), seed, max_new_tokens)
        for row, (ids, seed) in enumerate(zip(prompts_ids, seeds, strict=True))
    ]
    engine = Engine(model)
    engine.check(requests)
    found = engine.stream(longest_first(requests), settings, StopRules(stop_ids), on_token=on_token)
    results = {request.key: generation for request, generation in found}
    return [results[request.key] for request in requests]


def longest_first(requests: Sequence[Request]) -> list[Request]:
    """Return requests by length, the longest first, equal prompts together. No long text is then
    left for the end, and memory that does not suffice shows at once.
    """
    return sorted(
        requests,
        key=lambda request: (len(request.prompt_ids) + request.max_new_tokens, request.prompt_ids),
        reverse=True,
    )


class Engine:
    """Writes texts with a model in memory; a `Backend`.

    Args:
        model: A causal LM of transformers; put in eval mode while a stream is open and put back
            after.
        tokenizer: The model's; only stop texts need it.
        most_rows: Texts that are written at the same time; None: as many as the device's free
            memory holds and its kind is worth.
        most_tokens: Positions that all these may come to take together; one text is always written.
            None: from the free memory.
        products: What its linear layers multiply with while a stream is open; copies of the weights
            are worth making for many texts (`copied_weights.products_for`).

    Raises:
        RequestError: the model takes no cache.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        most_rows: int | None = None,
        most_tokens: int | None = None,
        products: Products = "own",
    ) -> None:
        self.model, self.tokenizer, self.products = model, tokenizer, products
        self.context = context_of(model)
        self.vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
        self.forward = Forward(model)
        self._most_rows, self._most_tokens = most_rows, most_tokens

    def stream(
        self,
        requests: Iterable[Request],
        settings: SamplingSettings,
        stop: StopRules,
        *,
        logprobs: bool = False,
        on_token: OnToken | None = None,
    ) -> Iterator[tuple[Request, Generation]]:
        """Results as they finish.

        Requests are taken only when there is room for them; equal prompts that follow each other
        are read once. An iterator that has none left is asked again while texts are written. A row
        that outgrows the model's context goes on from the last `context // 2` tokens of its own
        text, read again as if they were the start: older text is forgotten. What a row draws
        depends on its prompt, its seed and the settings, not on the other rows. When memory runs
        out, half of the running rows go on from the tokens they have, and the others wait for their
        turn. Closing the iterator ends everything.

        Raises:
            RequestError: empty prompt, prompt longer than the context, unknown token id, no new
                tokens asked for, stop texts that are empty or without a tokenizer, logits not
                finite, or memory does not hold one row.
        """
        if stop.texts and self.tokenizer is None:
            raise RequestError(
                "stop texts need the model's tokenizer, and the engine was given none. Give it one,"
                " or leave the stop texts out."
            )
        if not all(stop.texts):
            raise RequestError(
                "a stop text is empty, so every answer would end before it begins. Leave it out."
            )
        suits_slots = Slots.suit(self.forward, self.context)
        with (
            eval_mode(self.model),
            copied_weights(self.model, self.products, with_blocks=suits_slots) as is_quick,
        ):
            run = _Run(
                self,
                iter(requests),
                settings,
                stop,
                wants_logprobs=logprobs,
                on_token=on_token,
                limits=self._limits(is_quick=is_quick),
                is_quick=is_quick,
            )
            while run.goes_on():
                failure = attempt(run.advance)
                if failure is not None:
                    run.halve(failure)
                    give_back_memory(self.model.device)
                for row in run.finished():
                    yield row.request, row.generation(with_logprobs=logprobs)

    def check(self, requests: Iterable[Request]) -> None:
        """Refuse what cannot be served.

        Raises:
            RequestError: see `stream`.
        """
        vocabulary = self.vocabulary
        for request in requests:
            key, prompt = request.key, request.prompt_ids
            if request.max_new_tokens < 1:
                raise RequestError(
                    f"max_new_tokens must be at least 1, got {request.max_new_tokens}."
                )
            if not prompt:
                raise RequestError(
                    f"prompt {key} has no tokens; start a text from nothing with the end-of-text"
                    " token."
                )
            if len(prompt) > self.context:
                raise RequestError(
                    f"prompt {key} has {len(prompt)} tokens, the model reads at most"
                    f" {self.context}. Shorten the prompt by {len(prompt) - self.context} tokens,"
                    " or train with a larger sequence_length."
                )
            if min(prompt) < 0 or max(prompt) >= vocabulary:
                wrong = next(token for token in prompt if not 0 <= token < vocabulary)
                raise RequestError(
                    f"prompt {key} holds token id {wrong}, but the model has only ids 0 to"
                    f" {vocabulary - 1}. Tokenize the prompt with the model's own tokenizer."
                )

    def _limits(self, *, is_quick: bool) -> tuple[int, int]:
        """Rows and positions at the same time."""
        if self._most_rows is not None and self._most_tokens is not None:
            return self._most_rows, self._most_tokens
        device = self.model.device
        rows, tokens = room_for_rows(
            self.model.config.get_text_config(decoder=True),
            torch.bfloat16.itemsize if is_quick else self.model.dtype.itemsize,
            _free_bytes(device),
            is_cpu=device.type == "cpu",
            is_quick=is_quick,
        )
        return self._most_rows or rows, self._most_tokens or tokens


@dataclass
class _Row:
    """A text that is being written. `window` is what the model reads: prompt and new tokens, or
    the last of them where all exceed the context.
    """

    request: Request
    window: list[int]
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def generation(self, *, with_logprobs: bool) -> Generation:
        """The finished text."""
        logprobs = self.logprobs if with_logprobs else None
        return Generation(self.new_ids, self.finish or "length", logprobs)

    def reach(self, context: int) -> int:
        """The most positions that it can take up in the cache."""
        return min(context, len(self.request.prompt_ids) + self.request.max_new_tokens)


class _Run:
    """One stream: rows that run, rows that wait with what they have, and requests not yet taken.

    Args:
        limits: Rows and positions at the same time.
        is_quick: Whether the model's blocks are `quick_blocks`.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Iterator[Request],
        settings: SamplingSettings,
        stop: StopRules,
        *,
        wants_logprobs: bool,
        on_token: OnToken | None,
        limits: tuple[int, int],
        is_quick: bool,
    ) -> None:
        self._engine, self._requests = engine, requests
        self._settings, self._stop = settings, stop
        self._finder: StopFinder | None = None
        if stop.texts and engine.tokenizer is not None:
            self._finder = StopFinder(engine.tokenizer, stop.texts)
        self._wants_logprobs, self._on_token = wants_logprobs, on_token
        self._most_rows, self._most_tokens = limits
        self._running: list[_Row] = []
        self._entering: list[_Row] = []
        self._waiting: deque[_Row] = deque()
        self._finished: list[_Row] = []
        self._is_quick = is_quick
        self._make_cache = self._cache_factory()
        self._cache: QuickSlots | Slots | Groups = self._make_cache()
        self._read: tuple[dict[tuple[int, ...], int], Prefilled] | None = None
        """The prompts read last, for requests that still come."""
        self._said_BV: Tensor | None = None
        """Tokens in each running row's prompt and text; only where repetition is penalised."""

    def _cache_factory(self) -> Callable[[], QuickSlots | Slots | Groups]:
        """Return what makes an empty cache: `Slots` where the model suits them, else `Groups`."""
        engine, limits = self._engine, (self._most_rows, self._engine.context, self._most_tokens)
        if self._is_quick:
            return partial(QuickSlots, engine.forward)
        # In bf16 numbers are rounded so coarsely that no shape may depend on the other rows.
        is_steady = engine.products == "bf16"
        if Slots.suit(engine.forward, engine.context):
            return partial(Slots, engine.forward, *limits, is_steady=is_steady)
        return partial(Groups, engine.forward, is_steady=is_steady)

    def goes_on(self) -> bool:
        """Admit requests where there is room, and return whether any row is left to write."""
        self._admit()
        return bool(self._running or self._entering)

    def finished(self) -> list[_Row]:
        """Return the rows that finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def advance(self) -> None:
        """The first tokens of the rows that enter, then a token for every running row."""
        with torch.inference_mode():
            while self._entering:
                self._enter_some()
            if self._running:
                self._take(
                    self._running,
                    self._cache.step([row.window[-1] for row in self._running]),
                    self._said_BV,
                )
                self._let_leave()

    def halve(self, failure: OutOfMemory) -> None:
        """Reduce the batch after out-of-memory: all running rows wait, and at most half as many
        run at a time from now on.

        Raises:
            RequestError: there was only one.
        """
        ran = [row for row in (*self._running, *self._entering) if row.finish is None]
        if len(ran) == 1:
            tokens = len(ran[0].window)
            raise RequestError(
                f"out of memory{failure} with one text of {tokens} tokens. Free memory that other"
                " programs hold, or ask for a shorter text."
            )
        self._most_rows = -(-(len(ran) or self._most_rows) // 2)
        self._waiting.extendleft(reversed(ran))
        self._running, self._entering, self._read, self._said_BV = [], [], None, None
        self._cache = self._make_cache()

    def _admit(self) -> None:
        """Choose the waiting texts that enter next, as many as rows and KV cache have room for. The
        longest go first. While others run, it waits until enough rows are free to be worth a pass.
        """
        free = self._most_rows - len(self._running)
        if self._running and free * self._cache.waits_for_share < self._most_rows:
            return
        rows = len(self._running)
        reach = max((row.reach(self._engine.context) for row in self._running), default=0)
        while rows < self._most_rows and (row := self._next_row()) is not None:
            reach = max(reach, row.reach(self._engine.context))
            if rows and (rows + 1) * reach > self._most_tokens:
                self._waiting.appendleft(row)
                break
            self._entering.append(row)
            rows += 1
        self._cache.await_rows(rows)
        self._entering.sort(key=lambda row: (len(row.window), row.window), reverse=True)

    def _next_row(self) -> _Row | None:
        if self._waiting:
            row = self._waiting.popleft()
            if len(row.window) > self._engine.context:
                row.window = row.window[-max(1, self._engine.context // 2) :]
            return row
        request = next(self._requests, None)
        if request is None:
            return None
        self._engine.check([request])
        return _Row(request, list(request.prompt_ids))

    def _enter_some(self) -> None:
        """Read the next prompts, draw the first token of each of their rows, and start the
        rows.
        """
        places, read = self._read_next()
        rows = list(takewhile(lambda row: tuple(row.window) in places, self._entering))
        sources = [places[tuple(row.window)] for row in rows]
        said_BV = self._said_by(rows)
        self._take(rows, read.logits_PV[sources], said_BV)
        staying = [number for number, row in enumerate(rows) if row.finish is None]
        if staying:
            self._cache.enter(read, [sources[number] for number in staying])
        if said_BV is not None:
            running = [] if self._said_BV is None else [self._said_BV]
            self._said_BV = torch.cat([*running, said_BV[staying]])
        self._entering = self._entering[len(rows) :]
        self._running += [rows[number] for number in staying]
        self._let_leave()

    def _read_next(self) -> tuple[dict[tuple[int, ...], int], Prefilled]:
        """Return the prefill of the first entering rows' prompts: the last one again where it
        holds them, else a new pass over as many prompts as it takes.
        """
        if self._read is not None and tuple(self._entering[0].window) in self._read[0]:
            return self._read
        self._read = None
        places: dict[tuple[int, ...], int] = {}
        for row in self._entering:
            window = tuple(row.window)
            if window not in places and (
                len(places) == self._cache.most_prompts
                or (places and (len(places) + 1) * len(window) > self._cache.most_prompt_tokens)
            ):
                break
            places.setdefault(window, len(places))
        read = (places, self._cache.prefill(list(places)))
        if self._cache.keeps_prefills:
            self._read = read
        return read

    def _take(self, rows: Sequence[_Row], logits_BV: Tensor, said_BV: Tensor | None) -> None:
        """Draw a token for every row."""
        uniform_B = uniform_numbers(
            [row.request.seed for row in rows], [len(row.new_ids) for row in rows]
        )
        scores_BV = logits_BV
        if said_BV is not None:
            penalty = self._settings.repetition_penalty
            scores_BV = penalised(logits_BV.float(), said_BV, penalty)
        settings = [row.request.settings or self._settings for row in rows]
        ids_B = next_tokens(scores_BV, settings, uniform_B)
        logprobs: Sequence[float | None] = [None] * len(rows)
        if self._wants_logprobs:
            logprobs = logprobs_of(logits_BV, ids_B)
        tokens = checked(ids_B)
        if said_BV is not None:
            said_BV[torch.arange(len(rows), device=ids_B.device), ids_B] = True
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            self._take_one(row, token, logprob)
        self._finished += [row for row in rows if row.finish is not None]

    def _take_one(self, row: _Row, token: int, logprob: float | None) -> None:
        if token in self._stop.ids:
            row.finish = "end_of_text"
            if not self._stop.keeps_token:
                return
        row.new_ids.append(token)
        row.window.append(token)
        if logprob is not None:
            row.logprobs.append(logprob)
        if row.finish is not None:
            return
        is_over = self._on_token is not None and self._on_token(row.request.key, token, logprob)
        if is_over or (
            self._finder is not None and self._finder.completes(row.request.prompt_ids, row.new_ids)
        ):
            row.finish = "stop"
        elif len(row.new_ids) == row.request.max_new_tokens:
            row.finish = "length"
        elif (
            self._stop.loops
            and len(row.new_ids) % LOOKS_FOR_LOOPS_EVERY == 0
            and ends_in_loop(row.new_ids)
        ):
            row.finish = "loop"

    def _said_by(self, rows: Sequence[_Row]) -> Tensor | None:
        if self._settings.repetition_penalty == 1:
            return None
        said_BV = torch.zeros(len(rows), self._engine.vocabulary, dtype=torch.bool)
        for number, row in enumerate(rows):
            said_BV[number, [*row.request.prompt_ids, *row.new_ids]] = True
        return said_BV.to(self._engine.model.device)

    def _let_leave(self) -> None:
        """Remove from the cache the rows that are finished, and those that outgrew the context and
        wait to be read again from the last half of it.
        """
        leaving = [
            place
            for place, row in enumerate(self._running)
            if row.finish is not None or len(row.window) > self._engine.context
        ]
        if not leaving:
            return
        rows = [self._running[place] for place in leaving]
        order = self._cache.leave(leaving)
        self._running = [self._running[place] for place in order]
        self._waiting += [row for row in rows if row.finish is None]
        if self._said_BV is not None:
            self._said_BV = self._said_BV[order]


def _free_bytes(device: torch.device) -> int:
    """Memory that this process can still have on a device."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return host.memory_free_bytes(host.control_group_limits())
