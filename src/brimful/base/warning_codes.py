"""Stable codes of what brimful warns about. `docs/warnings.md` has a paragraph on each, under an
anchor that is the code. A code keeps its meaning for good; one that is given up is not used again.
"""

import re
from collections.abc import Iterable

from brimful.base.types import Texts

WARNINGS: Texts = {
    # plans
    "B101": "an optimizer step sees more or fewer tokens than the recipe was made for",
    "B102": "recordings that come with brimful are not used",
    "B103": "sessions cannot be planned",
    "B104": "what happened while a plan was verified",
    "B105": "another tool's step is planned approximately",
    "B106": "rates measured on this device are not used",
    "B107": "a device cannot share a job with others",
    "B108": "a name of several devices is taken for the most common",
    "B111": "a compiled step is planned as if it were not compiled",
    "B112": "the trainer's loss is a mean over each micro-batch",
    "B113": "evaluations are not in the prediction",
    "B114": "rows that do not fill a micro-batch are dropped",
    # data
    "B200": "a note of an earlier version of brimful",
    "B201": "how files and data sets were read",
    "B202": "how documents were split",
    "B203": "splits have other sizes than asked for",
    "B204": "held-out text occurs in the training text",
    "B205": "examples are cut or left out",
    "B206": "a template is put around prompts",
    "B207": "what was made of the labels",
    "B208": "labels were rebalanced",
    "B209": "a split lacks a label",
    "B210": "texts are repeated",
    "B211": "a threshold was not reached on validation",
    "B212": "what was read or written otherwise in a prediction",
    "B213": "something of a published model is not taken",
    "B214": "tokens of training files are made again when they are needed",
    "B215": "how answers are learned otherwise than rows have them",
    "B216": "answers are flagged as not to be learned",
    "B217": "special tokens are spelled in texts",
    "B218": "prompts and answers are joined without white space",
    "B219": "labels that may be mistaken",
    "B220": "columns, fields or messages are not used",
    "B221": "an added token is not learned",
    "B222": "a tokenizer learned from parts of very long words",
    "B223": "pairs of answers that teach nothing, contradict each other, or are repeated",
    # runs
    "B301": "a damaged checkpoint was put aside",
    "B302": "steps are done again, because no checkpoint was written before the stop",
    "B303": "the end of a run's records was lost",
    "B304": "the loss or the gradient jumped",
    "B305": "steps were left out after values that cannot be trained on",
    "B306": "steps of this device cannot be compared bit for bit",
    "B307": "torch.compile failed",
    "B308": "the run goes on with other versions",
    "B309": "a model was not scored",
    "B310": "a logger is not written, or not in full",
    "B311": "the monitor stopped",
    "B312": "memory ran out, and micro-batches are smaller now",
    "B313": "there are no samples beside those of the base",
    "B314": "a damaged file was moved aside",
    "B315": "figures of the run are not remembered for later plans",
    "B316": "a step took another time than the rates of this machine say",
    "B317": "the run was faster than the rates of this machine",
    "B318": "files of the run are missing or damaged",
    "B319": "the report of a training was not written",
    "B321": "the mirror is on the disk of the run",
    "B322": "the finished run is not in its mirror",
    "B323": "the run and its copy in the mirror are both damaged",
    "B324": "something in the mirror is not used",
    "B325": "there is no sample of the trained model",
    "B326": "answers become less likely while a model learns to prefer",
    "B327": "judged answers are of one kind, or one kind counts much more than the other",
    "B328": "answers that are rewarded have passed a limit",
    "B329": "sampler and trainer compute other log-probabilities of the same tokens",
    "B330": "weights that should be trained got no gradient",
    # machines
    "B401": "the device that was asked for cannot be used",
    "B402": "torch cannot use the GPU",
    "B403": "GPUs are hidden",
    "B404": "an older device is selected",
    "B405": "torch does not support the GPU, or will not for long",
    "B406": "the GPU has no bf16",
    "B407": "the GPU's memory is taken",
    "B408": "disk or main memory are short",
    "B409": "software is missing",
    "B410": "libraries do not fit each other",
    "B411": "a library has a version that brimful was not tried with",
    # results
    "B501": "how a task was asked or scored",
    "B502": "how far runs can be compared",
    # servers
    "B601": "other machines reach the server",
}
"""What each code is about."""

ALWAYS_TOLD = frozenset(("B201", "B205", "B327", *(f"B{number}" for number in range(215, 224))))
"""What no limit of lines hides: data are lost, cut, unread, or learned otherwise than they say."""

_CODED = re.compile(r"B\d{3}: ")


def coded(code: str, text: str) -> str:
    """Return `B101: text`. Raises KeyError for a code that is not in `WARNINGS`."""
    if code not in WARNINGS:
        raise KeyError(code)
    return f"{code}: {text}"


def all_coded(code: str, texts: Iterable[str]) -> list[str]:
    """Return each text with the same code."""
    return [coded(code, text) for text in texts]


def is_always_told(line: str) -> bool:
    """Whether a line is a note that no limit of lines hides."""
    return line.startswith("note ") and line[5:9] in ALWAYS_TOLD


def as_note(text: str, code: str = "B200") -> str:
    """Return a line for a user, `note B101: text`.

    Args:
        code: Used where the text does not begin with a code of its own.
    """
    return f"note {text if _CODED.match(text) else coded(code, text)}"
