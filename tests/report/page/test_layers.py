"""The report's tables of layers hold what scores.json says; damage leaves them out."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

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
