"""Losses of every kind of run, with their units; of masked tokens never bits per byte."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.page import headline
from brimful.report.page.html import write_report
from brimful.report.page.score_tables import loss_table
from brimful.report.text import evaluation_lines
from brimful.runs.folder import read_run

SCORE: JsonDict = {
    "kind": "masked",
    "masked_share": 0.15,
    "loss": 2.3125,
    "loss_interval": [2.25, 2.375],
    "tokens": 17731,
    "documents": 60,
    "seconds": 2.9,
    "tokens_per_second": 6100.4,
    "context": 128,
    "windows": 923,
    "batch_sizes": [64],
}
RECIPE = (
    "name: tiny-encoder\nmethod: mlm\nmodel: {architecture: modernbert, layers: 4, width:"
    " 128}\ndata: {path: 'builtin:python-docs'}\n"
)
SAMPLE = {
    "prompt": "the [MASK] is",
    "completion": "'value' stands there",
    "finish": "fill-mask",
    "temperature": 0.0,
    "top_k": 5,
    "tokens": 1,
}


def test_each_split_has_its_own_baselines_below_it(new_run: MakeRun) -> None:
    scores = {
        name: {"loss": 2.0, "baselines": {"bigram": {"loss": loss}}}
        for name, loss in (("test", 3.0), ("validation", 4.0))
    }
    table = loss_table(read_run(new_run(scores=scores)).scores.likelihood)
    assert table is not None
    assert [row[:2] for row in table.text_rows] == [
        ("validation", "2.000"),
        ("Bigram", "4.000"),
        ("test", "2.000"),
        ("Bigram", "3.000"),
    ]


def test_the_terminal_tells_the_loss_over_hidden_tokens_alone(snapshot: SnapshotAssertion) -> None:
    assert evaluation_lines({"validation": SCORE}) == snapshot


def test_a_loss_that_is_not_finite_and_has_no_interval_is_told_as_that(
    snapshot: SnapshotAssertion,
) -> None:
    assert (
        evaluation_lines({"validation": SCORE | {"loss": None, "loss_interval": None}}) == snapshot
    )


def test_the_report_tells_what_the_loss_is_of_and_what_stands_at_hidden_words(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run("tiny-encoder", recipe=RECIPE, scores={"validation": SCORE}, samples=[SAMPLE])
    run = read_run(folder)
    page = write_report(folder).read_text(encoding="utf-8")

    assert run.kind.name == "masked"
    assert headline.sentence(run) == snapshot
    assert headline.verdict(run) == snapshot
    assert [card.name for card in headline.cards(run)][:1] == ["Loss"]
    assert "AutoModelForMaskedLM" in page
    assert "What it fills in" in page
    assert "Loss (nats/masked token)" in page
    assert "Loss, nats per masked token" in page
    assert "the [MASK] is</span>\n&#39;value&#39; stands there" in page
    for wrong in ("Perplexity", "its per byte", "brimful generate", "temperature 0.0"):
        assert wrong not in page, wrong


def test_the_table_has_a_row_for_each_split_and_none_without_scores(
    new_run: MakeRun,
) -> None:
    table = loss_table(
        read_run(
            new_run("tiny-encoder", recipe=RECIPE, scores={"test": SCORE, "validation": SCORE})
        ).scores.likelihood
    )

    assert table is not None
    assert table.text_rows[0] == (
        "validation",
        "2.312 [2.250, 2.375]",
        "17,731",
        "15%",
        "60",
        "128",
        "6.10k",
        "2.9 s",
    )
    assert [row[0] for row in table.text_rows] == ["validation", "test"]
    assert loss_table({}) is None
