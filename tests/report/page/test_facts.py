"""Nested facts as rows, with units from their names."""

from fixture_types import MakeRun

from brimful.report.page.facts import environment_table
from brimful.runs.folder import read_run


def test_the_environment_is_flat_with_units_from_the_names(new_run: MakeRun) -> None:
    table = environment_table(read_run(new_run()))
    assert table is not None
    rows = {row[0]: row[1] for row in table.text_rows}
    assert rows["Device memory"] == "7.45 GiB"
    assert rows["Device dense bf16"] == "590 GFLOP/s"
    assert rows["Device abilities fp8"] == "no"
    assert rows["Packages"].startswith("torch 2.13.0+cpu, ")
    assert "Git" not in rows
