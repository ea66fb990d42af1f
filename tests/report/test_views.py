"""Views hold what is there, and can be read by a program."""

import json

from fixture_types import MakeRun

from brimful.report.page.run_page import run_view
from brimful.report.table import Cell, Table
from brimful.report.views import Paragraph, as_json, fold, section, text
from brimful.runs.folder import read_run


def test_what_is_not_there_leaves_nothing() -> None:
    assert fold("Nothing", None) == text("") == section("a", "A", None).blocks == ()
    assert fold("One", Paragraph("a"), is_folded=False) == (Paragraph("a"),)


def test_a_view_is_json_with_the_value_and_the_text_of_a_cell(new_run: MakeRun) -> None:
    cell = Cell(0.5, "{:.0%}".format, (0.4, 0.6), "better")
    assert as_json(Table(("a",), ((cell,),)))["rows"] == [
        [
            {
                "block": "Cell",
                "value": 0.5,
                "form": "50%",
                "interval": [0.4, 0.6],
                "note": "better",
                "unit": "",
            }
        ]
    ]
    values = json.loads(json.dumps(as_json(run_view(read_run(new_run())))))
    assert values["status"] == "finished: 500 steps"
    keys = [each["key"] for each in values["sections"]]
    assert keys[:4] == ["curves", "predictions", "scores", "samples"]
    (loss,) = [
        block
        for each in values["sections"]
        for block in each["blocks"]
        if block.get("key") == "loss"
    ]
    assert loss["levels"][0]["name"].startswith("uniform guess")
