"""A tuned model compared with its base while it is trained: the same held-out sequences, scored
before the first step and, where no evaluation is on the same ones, at the end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from brimful.base.types import Json, JsonDict
from brimful.runs.records import BASE_MODEL, TUNED_MODEL

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
