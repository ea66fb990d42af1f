"""Samples stand with their settings; a run of text says when it has none."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.samples import MAX_SAMPLES, samples_view
from brimful.runs import read_run


def test_the_last_samples_are_shown_with_their_settings(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    samples = [
        {"prompt": "a", "completion": f"{place}", "finish": "length", "tokens": 3, "top_k": 5}
        for place in range(MAX_SAMPLES + 2)
    ]
    view = samples_view(read_run(new_run(samples=samples)))
    assert view is not None
    assert (len(view.samples), view.total) == (MAX_SAMPLES, MAX_SAMPLES + 2)
    assert view.samples[-1].completion == f"{MAX_SAMPLES + 1}"
    assert view.samples[0].about == snapshot


def test_only_a_model_of_text_always_has_the_section(
    new_run: MakeRun, labelled_run: MakeRun
) -> None:
    assert samples_view(read_run(new_run(samples=None))) is not None
    assert samples_view(read_run(labelled_run())) is None
