"""Tables as CSV hold the numbers of the run as they are, and say their units."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

from fixture_types import MakeRun

from brimful.base.types import JsonDict
from brimful.report.page.csv_tables import csv_files, records_table
from brimful.report.table import Table, csv_text
from brimful.runs.folder import read_run


def tables_of(folder: Path) -> dict[str, Table]:
    return {file.name: file.table for file in csv_files(read_run(folder))}


def rows_of(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(table))))


def test_predictions_are_numbers_whose_unit_ends_the_name_of_the_quantity(new_run: MakeRun) -> None:
    rows = {row["quantity"]: row for row in rows_of(tables_of(new_run())["predictions"])}
    memory = rows["peak_memory_bytes"]
    assert (
        float(memory["predicted"]),
        float(memory["predicted_low"]),
        float(memory["measured"]),
    ) == (1.31e9, 1.2e9, 1.272e9)
    assert memory["inside_interval"] == "True"
    assert rows["energy_wh"]["measured"] == ""


def test_steps_have_every_recorded_field_with_its_unit(new_run: MakeRun) -> None:
    table = tables_of(new_run())["steps"]
    assert {
        "step",
        "loss_nats_per_token",
        "tokens_per_s",
        "step_time_s",
        "memory_bytes",
        "time_unix_s",
    } <= set(table.columns)
    assert len(table.rows) == 500
    assert rows_of(table)[0]["step"] == "1"


def test_scores_have_their_intervals_as_columns_and_the_baselines_as_rows(new_run: MakeRun) -> None:
    rows = rows_of(tables_of(new_run())["scores"])
    assert [row["scored"] for row in rows] == ["model", "Uniform guess", "Unigram", "Bigram"]
    assert (
        rows[0]["bits_per_byte_low"],
        rows[0]["loss_high_nats_per_token"],
        rows[1]["bits_per_byte_low"],
    ) == ("1.3902", "3.0898", "")


def test_a_classifier_has_its_metrics_labels_and_mistakes_in_nats_per_text(
    labelled_run: MakeRun,
) -> None:
    found = tables_of(labelled_run())
    assert "loss_nats_per_text" in found["steps"].columns
    assert "scores" not in found
    metrics = {
        (row["split"], row["scored"], row["metric"]): row for row in rows_of(found["label_metrics"])
    }
    assert float(metrics["test", "model", "f1"]["low"]) <= float(
        metrics["test", "model", "f1"]["value"]
    )
    assert ("test", "floor", "f1") in metrics
    assert {row["label"] for row in rows_of(found["labels"])} == {"ham", "spam"}
    assert rows_of(found["label_mistakes"])


def test_tasks_are_rows_by_metric(new_run: MakeRun, on_task: Callable[..., None]) -> None:
    folder = new_run()
    on_task(folder, "humaneval", {"pass@1": {"a": 1.0, "b": 0.0}})
    (row,) = rows_of(tables_of(folder)["tasks"])
    assert (row["task"], row["metric"], row["value"], row["low"], row["n"], row["unit"]) == (
        "humaneval",
        "pass@1",
        "0.5",
        "0.45",
        "2",
        "share",
    )


def test_cells_with_commas_and_line_ends_come_back_as_they_were() -> None:
    records: list[JsonDict] = [
        {"text": 'a, "b"\nc', "size": 1.5, "of": {"x": None}},
        {"other": [1, 2]},
    ]
    table = records_table(records)
    assert table is not None
    assert rows_of(table) == [
        {"text": 'a, "b"\nc', "size": "1.5", "of_x": "", "other": ""},
        {"text": "", "size": "", "of_x": "", "other": "1;2"},
    ]


def test_a_table_without_rows_is_left_out(new_run: MakeRun) -> None:
    assert tables_of(new_run(plan=None, environment=None, data=None, scores=None, metrics=[])) == {}
