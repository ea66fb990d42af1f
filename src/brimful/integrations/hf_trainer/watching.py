"""`with brimful.watching(model, optimizer):` around a training loop of one's own."""

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from brimful.base.errors import BrimfulError, RequestError
from brimful.base.types import Json
from brimful.hardware.device import Device
from brimful.hardware.probe import probe
from brimful.integrations.hf_trainer.fitting import process_bytes_beside
from brimful.integrations.hf_trainer.measuring import MeasuredTraining, StepMeter
from brimful.integrations.hf_trainer.page import Predicted, trained, write_page
from brimful.integrations.hf_trainer.rates import predicted_step
from brimful.planning.plan import Prediction
from brimful.rehearsal.foreign import LossOf, plan_model

FILE_NAME = "brimful-report.html"
_AUTOCAST = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class Watch:
    """What is seen of a training loop.

    Attributes:
        measured: Step times and memory, after the loop.
        predicted: What was predicted of the first batch, after the loop; None where `note` says why
            not.
        note: Why nothing was predicted.
        passes: Forward passes of an optimizer step.
        keeps_outputs: Whether the loop held what the model returned while the optimizer made its
            first step.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, process_bytes: int
    ) -> None:
        self._model, self._optimizer, self._process_bytes = model, optimizer, process_bytes
        self._batch: dict[str, Tensor] | None = None
        self._autocast = "none"
        self._num_passes, self._num_updates = 0, 0
        self.measured: MeasuredTraining | None = None
        self.predicted: Predicted | None = None
        self.note = ""
        self.passes, self.keeps_outputs = 1, False
        self._output: Callable[[], Tensor | None] = lambda: None

    def saw_pass(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Count a call of the model if it trains, and note shapes and autocast of the first one."""
        if not model.training or not torch.is_grad_enabled():
            return
        self._num_passes += 1
        if self._batch is None:
            self._batch = _shapes(model, args, kwargs)
            kind = next(model.parameters()).device.type
            if torch.is_autocast_enabled(kind):
                self._autocast = _AUTOCAST.get(torch.get_autocast_dtype(kind), "none")

    def saw_output(self, model: nn.Module, args: Any, output: Any) -> None:
        """Note the largest tensor that a call returned, without holding it."""
        tensors = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
        if tensors and not self._num_updates:
            self._output = weakref.ref(max(tensors, key=Tensor.numel))

    def saw_update(self) -> None:
        """The optimizer made a step."""
        if not self._num_updates:
            self.keeps_outputs = self._output() is not None
        self._num_updates += 1

    def finish(self, measured: MeasuredTraining) -> None:
        """Take what was measured."""
        self.measured = measured
        self.passes = max(1, round(self._num_passes / max(self._num_updates, 1)))

    @property
    def rows(self) -> int:
        """Rows of the first micro-batch; 0 where none was seen."""
        return len(next(iter(self._batch.values()))) if self._batch else 0

    def predict(self, device: Device, loss_of: LossOf | None, *, clips: bool) -> None:
        """Predict the loop's memory and time from the shapes of its first batch."""
        if not self._batch:
            self.note = "Nothing was predicted: the model was not called with tensors to train on."
            return
        try:
            memory = plan_model(
                self._model,
                self._batch,
                self._optimizer,
                device=device,
                autocast=self._autocast,
                accumulates=self.passes > 1,
                clips=clips,
                loss_of=loss_of,
                process_bytes=self._process_bytes,
                keeps_outputs=self.keeps_outputs,
            )
            footprint = memory.at(self.rows)
            step = self._step_time(memory.work_at, device)
        except BrimfulError as error:
            self.note = f"Nothing was predicted: {error}"
            return
        self.predicted = Predicted(device.name, device.kind, footprint, step)

    def _step_time(self, work_at: Callable[[int], Any], device: Device) -> Prediction | None:
        dtype = next(self._model.parameters()).dtype
        precision = self._autocast if self._autocast != "none" else _AUTOCAST.get(dtype, "fp32")
        return predicted_step(work_at, (self.rows,) * self.passes, device, precision)


@contextmanager
def watching(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    report: str | Path | None = FILE_NAME,
    loss_of: LossOf | None = None,
    clips: bool = True,
) -> Iterator[Watch]:
    """Measure a training loop of one's own, and at its end write what was predicted beside it.

    Steps are those of the optimizer; micro-batches are counted by the model's calls in training
    mode. The prediction is made at the end, from the shapes of the first batch and nothing else, so
    that planning takes no memory while the loop is measured. The loop is not changed. If it raises,
    nothing is written.

    Args:
        model: Called by the loop; its parameters that require gradients train.
        optimizer: Any of torch's.
        report: The page to write; None: none.
        loss_of: (model, batch) -> 0-dim loss, where the batch maps the model's arguments by name.
            Default: the model's output has a `loss`, as those of transformers have.
        clips: The loop clips the gradient norm.

    Raises:
        RequestError: the model has no parameters.
    """
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise RequestError(f"watching: {type(model).__name__} has no parameters to train.")
    device = probe(str(parameter.device))
    watch = Watch(model, optimizer, process_bytes_beside([model], device))
    meter = StepMeter(parameter.device)

    def updated(*_: Any) -> None:
        watch.saw_update()
        meter.step_ended()

    handles = [
        model.register_forward_pre_hook(watch.saw_pass, with_kwargs=True),
        model.register_forward_hook(watch.saw_output),
        optimizer.register_step_post_hook(updated),
    ]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
    measured = meter.finish()
    watch.finish(measured)
    watch.predict(device, loss_of, clips=clips)
    if report is not None:
        division = (watch.rows, watch.passes)
        seen = trained(model, "a loop of its own", device.name, division, measured)
        write_page(Path(report), seen, watch.predicted, watch.note)


def _shapes(model: nn.Module, args: Any, kwargs: Json) -> dict[str, Tensor]:
    """Return the tensors of a call by the names of the model's arguments, without values."""
    try:
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError:
        given = dict(kwargs)
    flat = {**given, **given.get("kwargs", {})}
    return {
        name: torch.empty(value.shape, dtype=value.dtype, device="meta")
        for name, value in flat.items()
        if isinstance(value, Tensor) and value.ndim > 0
    }
