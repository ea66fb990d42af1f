"""Which back end writes, and why."""

from typing import Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.generation.backends.transformers_batching import TransformersBatching
from brimful.generation.backends.vllm_engine import VllmEngine
from brimful.generation.copied_weights import products_for
from brimful.generation.engine import Engine
from brimful.generation.requests import Backend

Choice = Literal["auto", "brimful", "transformers", "vllm"]

REASONS = {
    "auto": (
        "brimful's engine writes: on any device, with any model; on a CPU, and elsewhere in fp32, a"
        " seed gives the same text however many are written at once"
    ),
    "brimful": "brimful's engine writes, as asked",
    "transformers": (
        "transformers' continuous batching writes, as asked: with brimful's drawing, so seeds hold,"
        " but without stop texts, repetition penalty and log-probabilities"
    ),
    "vllm": (
        "vLLM writes, as asked: it loads the model a second time; the same seeds give other texts"
        " than brimful's engine, and its texts may change with what else is written at the same"
        " time"
    ),
}
"""What a user reads."""


def backend_for(
    choice: Choice,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    source: str,
    most_rows: int | None = None,
    precision: str = "auto",
) -> tuple[Backend, str]:
    """The back end for a choice, and one sentence on it.

    Args:
        choice: auto is brimful's engine.
        model: A model in memory, on its device.
        tokenizer: The model's.
        source: Hub id or folder of the same weights or adapters, for back ends that load them
            themselves.
        most_rows: Texts at the same time; None: the back end decides.
        precision: The recipe's `plan.precision`: brimful's engine keeps to fp32.

    Raises:
        RequestError: it is not installed, or cannot run this model here.
    """
    backend: Backend
    if choice == "vllm":
        backend = VllmEngine(source, device=model.device, dtype=model.dtype, most_rows=most_rows)
    elif choice == "transformers":
        backend = TransformersBatching(model, most_rows=most_rows)
    else:
        products = products_for(model, precision)
        backend = Engine(model, tokenizer, most_rows=most_rows, products=products)
    return backend, REASONS[choice]
