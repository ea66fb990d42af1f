"""What a report says of the data, by split."""

from fixture_types import MakeRun

from brimful.report.page.data_page import (
    label_count_table,
)
from brimful.runs.folder import read_run


def test_counts_of_many_labels_end_with_how_many_more_there_are(labelled_run: MakeRun) -> None:
    counts = {f"intent {number}": number for number in range(30)}
    train = {"texts": sum(counts.values()), "labels": counts}
    table = label_count_table(read_run(labelled_run(data={"splits": {"train": train}})))
    assert table is not None
    assert table.text_rows[0] == ("intent 29", "29 (6.7%)")
    assert table.text_rows[-1] == ("10 more", "")
    assert len(table.text_rows) == 21
