"""What a report says of the data, by split."""

from fixture_types import MakeRun

from brimful.report.page.data_page import (
    conflict_table,
    duplicate_table,
    label_count_table,
    leakage_table,
    repeat_table,
    split_table,
)
from brimful.runs.folder import read_run


def test_repeated_documents_are_counted_by_split(new_run: MakeRun) -> None:
    table = leakage_table(read_run(new_run()))
    assert table is not None
    assert table.text_rows == (("train", "4,210", "12", "15"), ("validation", "214", "0", "3"))


def test_splits_come_in_pipeline_order_with_text_in_bytes(new_run: MakeRun) -> None:
    table = split_table(read_run(new_run()))
    assert table is not None
    assert [row[0] for row in table.text_rows] == ["train", "validation"]
    assert table.text_rows[0][1:3] == ("4,210", "6.87 MiB")


def test_tables_of_the_data_count_texts_labels_and_repeats(labelled_run: MakeRun) -> None:
    run = read_run(labelled_run())
    texts, labels, repeats = split_table(run), label_count_table(run), duplicate_table(run)
    assert texts is not None
    assert texts.text_rows[0] == ("train", "1,000", "8", "60", "171")
    assert labels is not None
    assert labels.text_rows == (
        ("ham", "800 (80.0%)", "96 (80.0%)", "192 (80.0%)"),
        ("spam", "200 (20.0%)", "24 (20.0%)", "48 (20.0%)"),
    )
    assert repeats is not None
    assert [row[0] for row in repeats.text_rows] == ["train", "test"]
    assert repeats.text_rows[1] == ("test", "240", "9", "12", "8", "20", "1")
    bare = read_run(labelled_run("bare", data={"splits": {"train": {}}, "duplicates": 3}))
    for table in (label_count_table, duplicate_table, repeat_table, conflict_table):
        assert table(bare) is None


def test_counts_of_many_labels_end_with_how_many_more_there_are(labelled_run: MakeRun) -> None:
    counts = {f"intent {number}": number for number in range(30)}
    train = {"texts": sum(counts.values()), "labels": counts}
    table = label_count_table(read_run(labelled_run(data={"splits": {"train": train}})))
    assert table is not None
    assert table.text_rows[0] == ("intent 29", "29 (6.7%)")
    assert table.text_rows[-1] == ("10 more", "")
    assert len(table.text_rows) == 21
