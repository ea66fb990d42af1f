"""What a training session starts from, the end of its time among it, and the comparison of a tuned
model with its base on the same held-out sequences.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.rundir import Lease
from brimful.base.types import Json, JsonDict, Texts
from brimful.base.units import format_duration
from brimful.planning.choices import PASSES_OF_MANY_LENGTHS
from brimful.planning.plan import Plan
from brimful.recipe import Recipe
from brimful.runs.records import BASE_MODEL, TUNED_MODEL
from brimful.training.loop import Sequences
from brimful.training.meter import Listener
from brimful.training.world import ALONE, World

KIND = "base"
"""Kind of these records in the journal."""


@dataclass(frozen=True)
class BaseComparison:
    """How the base and the tuned model are scored.

    Attributes:
        score: Returns the values of a record.
        share: Share of the validation sequences that an evaluation scores, 0 to 1.
        max_sequences: That an evaluation scores at most, as the recipe says.
    """

    score: Callable[[PreTrainedModel], Json]
    share: float
    max_sequences: int | None

    def of_base(self, records: Iterable[Json]) -> Json | None:
        """Return the record of the base model's score on these validation sequences; None if it was
        not scored on them.
        """
        return next(iter(self._of(records, BASE_MODEL)), None)

    def lacks_tuned(self, records: Sequence[Json]) -> bool:
        """Return whether the base was scored on part of the validation sequences, and the tuned
        model not yet on the same part.
        """
        has_base = bool(self._of(records, BASE_MODEL))
        return self.share < 1 and has_base and not self._of(records, TUNED_MODEL)

    def record(self, model: str, step: int, values: Json) -> JsonDict:
        """Return the record of a score."""
        scored = {name: value for name, value in values.items() if name != "batch_sizes"}
        how = {"share": self.share, "max_sequences": self.max_sequences}
        return {"kind": KIND, "step": step, "model": model, **how, **scored}

    def _of(self, records: Iterable[Json], model: str) -> list[Json]:
        wanted = (KIND, model, self.share, self.max_sequences)
        keys = ("kind", "model", "share", "max_sequences")
        return [each for each in records if tuple(each.get(key) for key in keys) == wanted]


RESERVE_S = 20.0
"""Time kept free before the end: machines are taken away a little early, and a disk may be slow
then (assumption).
"""
MOST_RESERVE_SHARE = 0.1
"""Largest share of a short session that is kept free."""
SAVE_SPREAD = 2.0
"""Factor on the time of the last checkpoint: the next one may take longer (assumption)."""
MOST_COPY_SHARE = 0.25
"""Largest share of the session that is kept free for the copy in the mirror, so that a slow mirror
shortens a session but does not use it up.
"""
WORK_SPREAD = 1.25
"""Factor on the time of the last step or evaluation (assumption)."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Deadline:
    """When a session ends.

    Attributes:
        at_s: Time at which the session has to end, by `clock`.
        session_s: Length of the whole session.
        clock: Seconds, rising.
    """

    at_s: float
    session_s: float
    clock: Clock = time.monotonic

    @classmethod
    def of_process(cls, session_s: float) -> "Deadline":
        """Return a deadline that counts from the start of this process."""
        running_s = time.time() - psutil.Process().create_time()
        return cls(time.monotonic() - running_s + session_s, session_s)

    @property
    def left_s(self) -> float:
        """Seconds until the session ends; negative after that."""
        return self.at_s - self.clock()

    def leaves_room(self, *, work_s: float, save_s: float, copy_s: float = 0.0) -> bool:
        """Return whether work, a checkpoint after it, and its copy in the mirror end in time."""
        reserve_s = min(RESERVE_S, MOST_RESERVE_SHARE * self.session_s)
        needed_s = WORK_SPREAD * work_s + SAVE_SPREAD * save_s
        return self.left_s >= needed_s + self.kept_for_copy_s(copy_s) + reserve_s

    def kept_for_copy_s(self, copy_s: float) -> float:
        """Return how much of the time that a copy takes is kept free for it."""
        return min(copy_s, MOST_COPY_SHARE * self.session_s)

    def describe(self, copy_s: float = 0.0) -> str:
        """Return when the session ends, and the time kept for the copy in the mirror if that is
        long.
        """
        ends = time.strftime("%H:%M", time.localtime(time.time() + self.left_s))
        message = (
            f"this session of {format_duration(self.session_s)} ends at {ends}, in"
            f" {format_duration(max(0.0, self.left_s))}"
        )
        kept_s = self.kept_for_copy_s(copy_s)
        if kept_s > RESERVE_S:
            message += f", of which the copy in the mirror is given {format_duration(kept_s)}"
        return message


@dataclass(frozen=True)
class Setup:
    """Everything a session starts from.

    Attributes:
        total_steps: Optimizer updates of the whole run.
        model: Fresh model on its device.
        tokenizer: Saved beside the exported model.
        evaluate: Scores the model on the validation split; returns the values of an evaluation
            record.
        identity: Fingerprints that a resumed checkpoint must share, by name.
        run_folder: Locked by rank 0 through `lease`; other ranks have none.
        tokens_per_step: Tokens that a step reads on average, without padding; None: effective
            batch times sequence length.
        deadline: Time at which the session has to end; None for no limit.
        copy_s: Estimated seconds until a checkpoint written now is durable in the mirror.
        base: How the model is scored before its first step; None: it is not.
        reference: Records of what was scored by the model from before training.
        note: Recorded when the session starts; empty: nothing.
        world: The ranks that train together. Only the first writes into the run folder.
        rebuild: Makes the model once more, on the host and whole, to export it if the ranks hold
            parts of it.
        draw: What draws answers, as `RunData.draw`; None: batches do not depend on the weights.
    """

    recipe: Recipe
    plan: Plan
    total_steps: int
    device: torch.device
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sequences: Sequences
    evaluate: Callable[[PreTrainedModel], Json]
    identity: Texts
    run_folder: Path
    lease: Lease | None
    listeners: Sequence[Listener]
    tokens_per_step: int | None = None
    deadline: Deadline | None = None
    copy_s: Callable[[], float] = lambda: 0.0
    base: BaseComparison | None = None
    reference: list[JsonDict] = field(default_factory=list)
    note: str = ""
    world: World = ALONE
    rebuild: Callable[[], PreTrainedModel] | None = None
    draw: Callable[[int, Callable[[], bool]], Json | None] | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether every rank holds a part of the model."""
        return not self.world.is_alone and self.plan.lies_in_parts

    def choose_kernels(self) -> None:
        """Leave out cuDNN's attention where lengths vary: it makes an execution plan for every new
        shape, which takes up to a second.
        """
        if self.device.type == "cuda" and self.plan.packing in PASSES_OF_MANY_LENGTHS:
            torch.backends.cuda.enable_cudnn_sdp(False)
