"""transformers' continuous batching with its paged KV cache, and brimful's drawing in it.

By itself it has one seed for everything, so a text would depend on its neighbours, and it drops
settings that it does not know. Here a logits processor draws every token by the request's own seed
and leaves only that one. Read in transformers 5.23, generation/continuous_batching.

Shapes: B rows with a new token, V vocabulary.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from brimful.base.errors import RequestError
from brimful.generation.requests import Generation, Request, StopRules, refuse_too_long
from brimful.generation.sampler import SamplingSettings, checked, next_token, uniform_numbers
from brimful.model.blocks import context_of
from brimful.model.quiet import quiet_logger
from brimful.planning.kv_cache import GPU_ROWS

CPU_ROWS = 16
"""Most rows at once on a CPU. Without FlashAttention every row's query looks at the positions of
all rows, most of them masked. Measured with a model of 17M parameters, one thread, 2026-11-21: 334,
312, 268, 254 tokens/s with 16, 32, 64, 128 rows.
"""
CPU_PAGE, CPU_BATCH_TOKENS, CPU_POSITIONS = 32, 1024, 16_384
"""Positions in a page; tokens of one pass; positions in store at most: a mask of the last two's
product is made, and a row that finds no room waits and is read again.
"""
POLL_S = 0.2


class TransformersBatching:
    """Writes texts by `generate_batch`'s machinery; a `Backend`.

    Args:
        model: A causal LM with attention in every layer; in eval mode and on paged attention while
            a stream is open, and put back after.
        most_rows: Texts at the same time; None: as many as are worth it.

    Raises:
        RequestError: the model has layers without keys and values for each position.
    """

    def __init__(self, model: PreTrainedModel, *, most_rows: int | None = None) -> None:
        layers = DynamicCache(config=model.config).layers
        if not layers or any(
            type(layer) not in {DynamicLayer, DynamicSlidingWindowLayer} for layer in layers
        ):
            raise RequestError(
                "transformers' continuous batching runs only models whose layers all attend, not"
                f" {type(model).__name__}. Use plan.sampling=brimful."
            )
        self._model, self._context = model, context_of(model)
        self._rows, self._config = _sized(model, most_rows)

    def stream(
        self,
        requests: Iterable[Request],
        settings: SamplingSettings,
        stop: StopRules,
        *,
        logprobs: bool = False,
    ) -> Iterator[tuple[Request, Generation]]:
        """Write texts as `Backend.stream` does.

        Raises:
            RequestError: stop texts, a repetition penalty or log-probabilities are asked for;
                prompt and text do not fit into the context.
        """
        for what, asked in (
            ("stop texts", bool(stop.texts)),
            ("a repetition penalty", settings.repetition_penalty != 1),
            ("log-probabilities", logprobs),
        ):
            if asked:
                raise RequestError(
                    f"transformers' continuous batching has no {what.removeprefix('a ')} here. Use"
                    f" plan.sampling=brimful, or do without {what}."
                )
        return self._stream(iter(requests), settings, stop)

    def _stream(
        self, waiting: Iterator[Request], settings: SamplingSettings, stop: StopRules
    ) -> Iterator[tuple[Request, Generation]]:
        drawing, number = _Drawing(settings), 0
        # It logs tracebacks; its failures become one error message here.
        with (
            quiet_logger("ContinuousBatchingLogger", logging.CRITICAL),
            self._managed(drawing) as manager,
        ):
            while True:
                for request in islice(waiting, self._rows - len(drawing.running)):
                    refuse_too_long(request, self._context, "the model")
                    drawing.running[str(number)] = request
                    manager.add_request(
                        [*request.prompt_ids],
                        str(number),
                        max_new_tokens=request.max_new_tokens,
                        eos_token_id=sorted(stop.ids),
                    )
                    number += 1
                if not drawing.running:
                    return
                written = _next_result(manager)
                if written is not None:
                    yield (
                        drawing.running.pop(written.request_id),
                        _generation(written.generated_tokens, stop),
                    )

    @contextmanager
    def _managed(self, drawing: "_Drawing") -> Iterator[Any]:
        """The machinery with our drawing in it, running; afterwards the model is as it was."""
        was_training = self._model.training
        manager = self._model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1), self._config
        )
        manager.logit_processor.logits_processor = LogitsProcessorList([drawing])
        manager.logit_processor.tensors_required = 1
        manager.logit_processor.do_processing = True
        manager.start()
        try:
            yield manager
        finally:
            manager.stop(hard_stop=True)
            manager.destroy()
            self._model.train(was_training)


class _Drawing(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Draws in the logits' place: what it leaves is the drawn token. Runs in the manager's thread,
    which is told of requests before they come.
    """

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, settings: SamplingSettings) -> None:
        self.running: dict[str, Request] = {}
        self._settings = settings
        self._uniform_B = uniform_numbers([], [])

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Nothing is kept on the device."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """Remember the numbers by which the next tokens are drawn."""
        states = [each.state for each in requests_with_new_token]
        asked = [self.running[state.request_id] for state in states]
        drawn = [
            len(state.initial_tokens) + len(state.generated_tokens) - len(request.prompt_ids)
            for state, request in zip(states, asked, strict=True)
        ]
        self._uniform_B = uniform_numbers([request.seed for request in asked], drawn)
        return torch.zeros(len(states), dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Scores (B, V) that allow one token per row."""
        del tensor_arg
        rows = len(self._uniform_B)
        ids_B = next_token(scores[:rows], self._settings, self._uniform_B)
        checked(ids_B)
        left_BV = torch.full_like(scores, -torch.inf)
        left_BV[:rows].scatter_(1, ids_B[:, None], 0.0)
        return left_BV


def _sized(model: PreTrainedModel, most_rows: int | None) -> tuple[int, ContinuousBatchingConfig]:
    """Rows at the same time and the store for them; on a GPU transformers sizes the store by the
    free memory.
    """
    config = ContinuousBatchingConfig(
        use_cuda_graph=False, use_async_batching=False, auto_switch_to_flash=False
    )
    is_cpu = model.device.type == "cpu"
    config.max_requests_per_batch = rows = most_rows or (CPU_ROWS if is_cpu else GPU_ROWS)
    if is_cpu:
        positions = max(context_of(model), min(rows * context_of(model), CPU_POSITIONS))
        config.page_size, config.max_batch_tokens, config.num_blocks = (
            CPU_PAGE,
            CPU_BATCH_TOKENS,
            -(-positions // CPU_PAGE) + rows,
        )
    return rows, config


def _next_result(manager: Any) -> Any:
    """The next finished request; None when there is none yet.

    Raises:
        RequestError: the request or everything failed.
    """
    written = manager.get_result(timeout=POLL_S)
    if written is None and manager.is_running():
        return None
    fatal = manager.background_thread_status.fatal_error
    if isinstance(fatal, RequestError):
        raise fatal
    if written is None or written.error is not None:
        raise RequestError(
            f"transformers' continuous batching failed: {fatal or written.error}. Use"
            " plan.sampling=brimful."
        ) from fatal
    return written


def _generation(token_ids: list[int], stop: StopRules) -> Generation:
    """Return the text without the token that ended it."""
    is_stopped = bool(token_ids) and token_ids[-1] in stop.ids
    if is_stopped:
        return Generation(token_ids[:-1], "end_of_text")
    return Generation(token_ids, "length")
