"""Answers of a tuned model beside those of its base, to the same prompts."""

from dataclasses import dataclass
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal
from brimful.runs.files import SIDE_BY_SIDE_FILE
from brimful.runs.parsing import parse


@dataclass(frozen=True, kw_only=True)
class AnswerPair:
    """What two models answered to one prompt, greedily.

    Attributes:
        prompt: Prompt as a person reads it.
        reference: The answer in the data; "" where there is none.
        base, tuned: Answers of the model before tuning, and of the tuned one.
        base_finish, tuned_finish: "length" where the answer was cut.
        seconds: Time of the base's answers to all prompts, in every record.
    """

    prompt: str = ""
    reference: str = ""
    base: str = ""
    tuned: str = ""
    base_finish: str = ""
    tuned_finish: str = ""
    seconds: float | None = None


def read_side_by_side(run_folder: Path) -> tuple[AnswerPair, ...]:
    """Return the pairs of a run; none where there are none or they cannot be read."""
    path = run_folder / SIDE_BY_SIDE_FILE
    if not path.is_file():
        return ()
    try:
        return tuple(parse(AnswerPair, record) for record in read_journal(path))
    except (RunFolderError, OSError, ValueError):
        return ()
