"""Texts that the model wrote, with the settings of sampling below each."""

from dataclasses import dataclass

from brimful.report.kinds import report_kind
from brimful.runs import RunFolder
from brimful.runs.facts import SampledText

MAX_SAMPLES = 8
FILLED = "fill-mask"
"""How a sample ends whose prompt had a hidden word."""
ENDINGS = {"end_of_text": "ended by itself", "length": "cut at the length asked for"}


@dataclass(frozen=True)
class SampleView:
    """One text: the prompt, what follows it, and its settings."""

    prompt: str
    completion: str
    about: str


@dataclass(frozen=True)
class SamplesView:
    """The last samples of a run, and how many it has in all."""

    samples: tuple[SampleView, ...]
    total: int


def samples_view(run: RunFolder) -> SamplesView | None:
    """None for a run without samples of a kind that need not have any."""
    if not run.samples and not report_kind(run).always_has_samples:
        return None
    shown = tuple(_sample(each) for each in run.samples[-MAX_SAMPLES:])
    return SamplesView(shown, len(run.samples))


def _sample(sample: SampledText) -> SampleView:
    """`temperature 0.8, top-k 50, seed 1234, 118 tokens, ended by itself`."""
    settings = {
        "temperature": sample.temperature,
        "top-k": sample.top_k,
        "top-p": sample.top_p,
        "seed": sample.seed,
    }
    about = [f"{name} {value}" for name, value in settings.items() if value is not None]
    if sample.tokens is not None:
        about.append(f"{sample.tokens:.0f} tokens")
    about += filter(None, [ENDINGS.get(sample.finish)])
    if sample.finish == FILLED:
        about = []
    return SampleView(sample.prompt, sample.completion, ", ".join(about))
