"""Public configurations of other tools, as stored: read again by today's tables."""

import json

import foreign_configs
from brimful.base.types import JsonDict
from brimful.integrations.other_tools.job import read_job
from brimful.integrations.other_tools.recognise import recognised, tool_named, tool_names

ROWS = json.loads(foreign_configs.STORED.read_text(encoding="utf-8"))
RECORD = json.loads(
    (foreign_configs.STORED.parent / "records" / "foreign_configs.json").read_text(encoding="utf-8")
)


def _changed(row: JsonDict) -> JsonDict:
    keys = dict(row["keys"])
    for change in row["changes"]:
        if not change.startswith("--"):
            foreign_configs.change_key(keys, change)
    return keys


def test_there_are_forty_files_of_four_tools_with_the_address_of_a_commit() -> None:
    addresses = {row["address"] for row in ROWS}

    assert len(addresses) >= 40
    assert {row["tool"] for row in ROWS} == set(tool_names()) - {"transformers_trainer"}
    assert all(len(address.partition("@")[2].partition("/")[0]) == 40 for address in addresses)


def test_the_tool_of_a_stored_file_is_known_by_its_keys() -> None:
    named = [row for row in ROWS if not any("--tool" in each for each in row["changes"])]
    found = [recognised(row["keys"], row["address"]) for row in named]

    assert found == [row["tool"] for row in named]


def test_the_record_says_of_every_file_what_the_tables_say() -> None:
    recorded = {(each["address"], tuple(each["changes"])): each for each in RECORD["files"]}

    assert len(recorded) == len(ROWS)
    for row in ROWS:
        read = read_job(tool_named(row["tool"]), _changed(row))
        said = recorded[row["address"], tuple(row["changes"])]
        if read.unknown:
            assert said["refused"] == [each.describe() for each in read.unknown]
        else:
            assert said["devices"] or "not in the catalog" in said["refused"][0]


def test_every_file_is_planned_on_two_devices_or_refused_with_a_key() -> None:
    for said in RECORD["files"]:
        if said["refused"]:
            assert all(": " in reason for reason in said["refused"])
        else:
            assert len(said["devices"]) == 2
            verdicts = {each["verdict"] for each in said["devices"].values()}
            assert verdicts <= {"fits", "does not fit", "uncertain"}


def test_drawn_files_are_read_as_stored_and_half_of_them_was_not_looked_at() -> None:
    rows = json.loads(foreign_configs.SAMPLE.read_text(encoding="utf-8"))
    halves = [row["half"] for row in rows]

    assert len({row["address"] for row in rows}) == len(rows) == 200
    assert abs(halves.count("work") - halves.count("report")) <= 1
    assert [foreign_configs.refused_now(row) for row in rows] == [row["refused"] for row in rows]
