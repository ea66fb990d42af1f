"""A callback of a Hugging Face Trainer that measures memory and step time, and writes what was
predicted beside it as a page.
"""

import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from brimful.base.errors import RunFolderError
from brimful.base.warning_codes import coded
from brimful.integrations.hf_trainer.fitting import TrainerPlan, name_of
from brimful.integrations.hf_trainer.measuring import MeasuredTraining, StepMeter
from brimful.integrations.hf_trainer.page import Predicted, trained, write_page

FILE_NAME = "brimful-report.html"


class BrimfulCallback(TrainerCallback):  # type: ignore[misc]
    """Measures a training and changes nothing of it. `brimful.prepare` adds one with a plan.

    It cannot survive what the Trainer cannot: when memory runs out, the training ends as it would
    without it, and no page is written.

    Args:
        report: The page to write at the end; None: brimful-report.html in the output folder.
        plan: What was predicted; None: the page shows what was measured.

    Attributes:
        measured: What was measured; there is none before the end of the training.
    """

    def __init__(
        self, report: str | Path | None = None, *, plan: TrainerPlan | None = None
    ) -> None:
        self._report, self._plan = report, plan
        self._meter: StepMeter | None = None
        self.measured: MeasuredTraining | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to measure."""
        self._meter = StepMeter(args.device)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note a step."""
        if self._meter is not None:
            self._meter.step_ended()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the evaluation out of the next step's time."""
        self._leave_out()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the checkpoint out of the next step's time."""
        self._leave_out()

    def _leave_out(self) -> None:
        if self._meter is not None:
            self._meter.leave_out()

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Write the page. A page that cannot be written is told, and the training is kept."""
        if self._meter is None:
            return
        self.measured, self._meter = self._meter.finish(), None
        if not state.is_world_process_zero:
            return
        plan = self._plan
        page = trained(
            model,
            plan.trainer if plan else "a Hugging Face Trainer",
            name_of(args.device),
            (args.train_batch_size, args.gradient_accumulation_steps),
            self.measured,
            args.world_size,
        )
        predicted = None
        if plan:
            predicted = Predicted(
                plan.device.name, plan.device.kind, plan.footprint, plan.step_time, plan.reason
            )
        path = Path(self._report or Path(args.output_dir) / FILE_NAME)
        try:
            write_page(path, page, predicted)
        except (RunFolderError, OSError) as error:
            logging.getLogger(__name__).warning(
                "brimful: %s", coded("B319", f"the report was not written: {error}")
            )
