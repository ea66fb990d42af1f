"""Between steps: drawing what is learned next, where that depends on the weights."""

import torch

from brimful.training.keeping import kept_where_it_fails
from brimful.training.loop import Parts
from brimful.training.pace import DRAWING
from brimful.training.setup import Setup
from brimful.training.signals import StopRequest
from brimful.training.state import Progress


def drawn(setup: Setup, stop: StopRequest, parts: Parts, progress: Progress) -> bool:
    """Draw what the next batch is made of, with nothing of the last step in memory, and record it;
    return False where the run was asked to stop meanwhile.

    Args:
        setup: Says how it is drawn, if at all.
        stop: Heeded while drawing goes on, unless ranks draw together.
        parts: Parts of the loop.
        progress: Progress before the batch.

    Raises:
        TrainingStopped: it cannot be drawn or judged; a checkpoint is written.
    """
    if setup.draw is None:
        return True
    parts.meter.flush()
    parts.doing(DRAWING)
    for parameter in parts.parameters:
        parameter.grad = None
    with (
        kept_where_it_fails(parts, progress, f"after step {progress.step}"),
        torch.compiler.set_stance("force_eager" if setup.plan.compile else "default"),
    ):
        found = setup.draw(
            progress.samples_consumed,
            lambda: parts.world.is_alone and stop.signal_number is not None,
        )
    record = dict(found or {})
    for message in record.pop("messages", ()):
        parts.meter.note_event(progress, message)
    if record:
        parts.meter.note({"kind": "round", "step": progress.step, **record})
    return found is not None
