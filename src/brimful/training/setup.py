"""What a training session starts from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.rundir import Lease
from brimful.base.types import Json, JsonDict, Texts
from brimful.planning.choices import PASSES_OF_MANY_LENGTHS
from brimful.planning.plan import Plan
from brimful.recipe import Recipe
from brimful.training.base_comparison import BaseComparison
from brimful.training.deadline import Deadline
from brimful.training.loop import Sequences
from brimful.training.meter import Listener
from brimful.training.world import ALONE, World


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
