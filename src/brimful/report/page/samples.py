"""Texts that the model wrote, with the settings of sampling."""

from brimful.report.kinds import report_kind
from brimful.report.views import Chapter, Prompted, fold, lacking, section, text
from brimful.runs.facts import SampledText
from brimful.runs.folder import RunFolder

MAX_SAMPLES, SHOWN_SAMPLES = 8, 2
"""The last ones that a page has, and those of them that are not folded."""
FILLED = "fill-mask"
"""How a sample ends whose prompt had a hidden word."""
ENDINGS = {"end_of_text": "ended by itself", "length": "cut at the length asked for"}


def samples_section(run: RunFolder) -> Chapter | None:
    """None for a run without samples of a kind that need not have any."""
    kind = report_kind(run)
    if not run.samples and not kind.always_has_samples:
        return None
    samples = [_sample(each, kind.prompt_end) for each in run.samples[-MAX_SAMPLES:]]
    earlier = samples[:-SHOWN_SAMPLES]
    about = f"Prompt {kind.samples_note}" if samples else ""
    if len(run.samples) > len(samples):
        about += f"; the last {len(samples)} of {len(run.samples)} samples"
    return section(
        "samples",
        kind.samples_heading,
        *lacking(run, "samples.jsonl"),
        *text(f"{about}." if about else "", "note"),
        *samples[-SHOWN_SAMPLES:],
        *fold(f"{len(earlier)} earlier one{'s' * (len(earlier) > 1)}", *earlier),
        title="Samples",
    )


def _sample(sample: SampledText, prompt_end: str) -> Prompted:
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
    written = f"{prompt_end if sample.prompt else ''}{sample.completion}"
    return Prompted(sample.prompt, written, ", ".join(about))
