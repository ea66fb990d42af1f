"""Samples stand with their settings; a run of text says when it has none."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.samples import MAX_SAMPLES, SHOWN_SAMPLES, samples_section
from brimful.report.views import Fold, Prompted
from brimful.runs.folder import read_run


def test_the_last_samples_are_shown_with_their_settings(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    samples = [
        {"prompt": "a", "completion": f"{place}", "finish": "length", "tokens": 3, "top_k": 5}
        for place in range(MAX_SAMPLES + 2)
    ]
    section = samples_section(read_run(new_run(samples=samples)))
    assert section is not None
    note, *shown, earlier = section.blocks
    assert note == snapshot
    assert [each.text for each in shown if isinstance(each, Prompted)] == ["8", "9"]
    assert isinstance(earlier, Fold)
    assert len(earlier.blocks) == MAX_SAMPLES - SHOWN_SAMPLES
    assert earlier.blocks[0] == snapshot


def test_only_a_model_of_text_always_has_the_section(
    new_run: MakeRun, labelled_run: MakeRun
) -> None:
    assert samples_section(read_run(new_run(samples=None))) is not None
    assert samples_section(read_run(labelled_run())) is None
