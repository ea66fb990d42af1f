"""The report's tables of layers hold what scores.json says; damage leaves them out."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.html import render_report
from brimful.report.page.layers import layers_section
from brimful.report.table import Table
from brimful.report.views import Paragraph
from brimful.runs.folder import RunFolder, read_run


def layer_tables(run: RunFolder) -> list[tuple[str, Table]]:
    """Sentences and tables of the section."""
    section = layers_section(run)
    blocks = section.blocks if section else ()
    texts = [each.text for each in blocks if isinstance(each, Paragraph)]
    return [*zip(texts, [each for each in blocks if isinstance(each, Table)], strict=True)]


def test_every_layer_has_a_row(fresh_text_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    (told, feedback), (sentence, attention) = layer_tables(read_run(fresh_text_run("a")))

    assert feedback.text_rows[1] == ("block 1", "0.200", "0.500", "1.100")
    assert told == snapshot
    assert attention.text_rows == (
        ("block 1", "0.97", "1.01", "0.4", "0.03", "0.05", "1 to 2.5"),
        ("block 2", "0.95", "0.99", "1e-11", "0.01", "0.02", "0.5 to 1.5"),
    )
    assert sentence == snapshot


def test_softmax_attention_has_no_columns_of_an_estimate(
    fresh_text_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    layer = {
        "name": "block 1",
        "output_norm": 0.4,
        "cosine": None,
        "norm_ratio": None,
        "violation": 0.1,
        "worst_violation": 0.2,
        "temperatures": [1],
    }
    layers = {
        "tokens": 10,
        "attention": {"mean_cosine": None, "mean_violation": 0.1, "dead": [], "layers": [layer]},
    }

    ((sentence, attention),) = layer_tables(read_run(fresh_text_run("softmax", layers=layers)))

    assert attention.columns == snapshot
    assert sentence == snapshot


def test_the_report_shows_them_where_there_are_any(
    fresh_text_run: MakeRun, new_run: MakeRun
) -> None:
    page = render_report(read_run(fresh_text_run("a")))

    assert "Gradient by feedback" in page
    assert "1e-11" in page
    assert "Inside the layers" not in render_report(read_run(new_run("llama")))


def test_a_damaged_record_is_left_out(fresh_text_run: MakeRun) -> None:
    for place, layers in enumerate(
        (
            [1],
            {"alignment": 3, "attention": {"layers": [4]}},
            {"alignment": {"segments": [{"name": "block 1"}]}},
        )
    ):
        found = layer_tables(read_run(fresh_text_run(f"run-{place}", layers=layers)))
        assert [table.text_rows for _, table in found] == [(("block 1", "-", "-", "-"),)] * (
            place == 2
        )
