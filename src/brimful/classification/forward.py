"""Texts through a classifier: rows of similar length together, the order of the texts kept, smaller
passes where memory runs out.

Suffixes: E texts, C labels, B texts of a pass, T positions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.base.arrays import Floats32
from brimful.base.errors import RequestError
from brimful.base.types import Progress
from brimful.data.labelled_batches import Passes
from brimful.training.memory_errors import (
    OutOfMemory,
    attempt,
    give_back_memory,
    refuse_to_halve_in_parts,
)
from brimful.training.precision import autocast
from brimful.training.shared_work import is_own
from brimful.training.world import ALONE, World


class ClassifierForward:
    """A classifier that gives logits; remembers the positions of a pass that fit.

    Args:
        model: A model with a head for C labels, on `device`, in eval mode.
        passes: How texts become rows.
        budget: Positions of a pass to begin with.
        device: Where the model is.
        autocast_dtype: The body computes under autocast to this type, None for none. The head is
            fp32: 8 bits of a logit would rank too few texts apart.
        world: Ranks that share the passes; each holds the whole model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        passes: Passes,
        budget: int,
        device: torch.device,
        autocast_dtype: torch.dtype | None = None,
        world: World = ALONE,
    ) -> None:
        self._model, self._passes, self._device, self._autocast_dtype = (
            model,
            passes,
            device,
            autocast_dtype,
        )
        self._world = world
        self.embedding_rows = int(model.config.get_text_config().vocab_size)
        self.budgets = [budget]
        """The one asked for, then each smaller one that memory forced; the last holds."""

    def logits(
        self, ids: Sequence[NDArray[np.uint32]], progress: Progress | None = None
    ) -> Floats32:
        """Logits (E, C) of texts given as token ids.

        Raises:
            RequestError: memory does not hold one text.
            CannotHalveAlone: it does not hold a pass, and the model lies in parts on several ranks.
        """
        logits_EC = np.empty((len(ids), int(self._model.config.num_labels)), dtype=np.float32)
        passes = self._laid_out(ids, list(range(len(ids))))
        waiting = [each for place, each in enumerate(passes) if is_own(self._world, place)]
        own = [number for each in waiting for number in each]
        done = 0
        while waiting:
            chosen = waiting.pop(0)
            made = attempt(partial(self._pass, [ids[number] for number in chosen]))
            if isinstance(made, OutOfMemory):
                self._halve(max(len(ids[number]) for number in chosen), len(chosen), made)
                rest = [number for each in (chosen, *waiting) for number in each]
                waiting = self._laid_out(ids, rest)
                continue
            logits_EC[chosen] = made.float().cpu().numpy()
            done += len(chosen)
            if progress is not None:
                progress("classify", done, len(own))
        if not self._world.is_alone:
            self._take_those_of_others(logits_EC, own)
        return logits_EC

    def _take_those_of_others(self, logits_EC: Floats32, own: list[int]) -> None:
        """Fill in what the other ranks made.

        Args:
            own: Numbers of the texts that this rank classified.
        """
        for numbers, rows in self._world.gather([own, logits_EC[own].tolist()]):
            if numbers:
                logits_EC[numbers] = np.asarray(rows, dtype=np.float32)

    def _laid_out(self, ids: Sequence[NDArray[np.uint32]], numbers: list[int]) -> list[list[int]]:
        laid_out = self._passes.laid_out([len(ids[number]) for number in numbers], self.budgets[-1])
        return [[numbers[place] for place in each] for each in laid_out]

    def _pass(self, ids: Sequence[NDArray[np.uint32]]) -> Tensor:
        inputs_BT, mask_BT = self._passes.filled(ids)
        inputs = {"input_ids": inputs_BT.to(self._device, non_blocking=True)}
        if mask_BT is not None:
            inputs["attention_mask"] = mask_BT.to(self._device, non_blocking=True)
        with torch.inference_mode(), _body_under_autocast(self._model, self._autocast_dtype):
            logits_BC: Tensor = self._model(**inputs).logits
        return logits_BC

    def _halve(self, longest: int, texts: int, failure: OutOfMemory) -> None:
        give_back_memory(self._device)
        if texts == 1:
            raise RequestError(
                f"out of memory{failure}: not even one text of {longest} tokens can be classified."
                " Free memory that other programs hold."
            )
        smaller = max(longest, texts * longest // 2)
        refuse_to_halve_in_parts(self._model, failure, texts * longest, smaller)
        self.budgets.append(smaller)


@contextmanager
def _body_under_autocast(model: PreTrainedModel, dtype: torch.dtype | None) -> Iterator[None]:
    """Let the model's body compute in `dtype` and hand fp32 states to the head; None: no change."""
    if dtype is None:
        yield
        return
    body = model.base_model
    forward = body.forward

    def under_autocast(*args: Any, **options: Any) -> Any:
        with autocast(model.device, dtype):
            outputs = forward(*args, **options)
        for name, value in outputs.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                outputs[name] = value.float()
        return outputs

    body.forward = under_autocast
    try:
        yield
    finally:
        body.forward = forward


def keep_body_in(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Keep the weights of the body's linear layers in the type that autocast makes of them for
    every pass; results stay the same to the bit. For a model that is not trained.
    """
    for module in model.base_model.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)
