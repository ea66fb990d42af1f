"""The list of runs as text: columns where there is room, blocks where there is not, members under
their study, what to type below.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.report.listing.checking import CheckResult
from brimful.report.listing.listing import Listed
from brimful.report.listing.text import render

NOW = 1_000_000.0
DONE = Listed(
    name="done",
    folder=Path("runs/done"),
    kind="run",
    method="pretrain",
    state="finished",
    told="finished: 500 steps",
    step=500,
    total_steps=500,
    score="1.418 bits/byte",
    size_bytes=3 * 1024**2,
    checkpoint_bytes=2 * 1024**2,
    freeable_bytes=2 * 1024**2,
    last_active=NOW - 65,
    command="brimful generate done",
)
HALF = replace(
    DONE,
    name="half",
    state="damaged",
    told="damaged: no [bold]recipe",
    score="",
    freeable_bytes=0,
    checkpoint_bytes=0,
    problems=("plan.json is missing",),
    points=("recovery point: step 40, 2m ago",),
    command="",
)


def lines(listed: list[Listed], width: int = 120) -> list[str]:
    return render(listed, width, now=NOW).plain.splitlines()


def test_a_run_is_a_line_with_what_to_type_below_it(snapshot: SnapshotAssertion) -> None:
    assert lines([DONE, HALF]) == snapshot


def test_members_are_indented_and_finished_ones_need_no_command(
    snapshot: SnapshotAssertion,
) -> None:
    study = replace(
        DONE,
        name="s",
        kind="study",
        told="1 of 2 runs finished",
        freeable_bytes=0,
        command="brimful run s/study.yaml",
    )
    shown = lines(
        [
            study,
            replace(DONE, name="s/a", is_member=True),
            replace(DONE, name="s/b", is_member=True, state="stopped"),
        ]
    )
    assert [line.split("  finished")[0].rstrip() for line in shown[1:3]] == snapshot
    assert [line for line in shown if "generate" in line] == snapshot
    assert shown[-2].startswith("2 runs, ")


def test_narrow_terminals_get_blocks(snapshot: SnapshotAssertion) -> None:
    shown = lines([DONE], width=60)
    assert shown[:4] == snapshot


@pytest.mark.parametrize(
    ("checked", "told"),
    [
        (CheckResult("model", True, "5 files equal"), "read back: 1 sound, 0 damaged"),
        (CheckResult("model", False, "differs"), "read back: 0 sound, 1 damaged"),
        (
            CheckResult("model", None, "no hashes"),
            "read back: 0 sound, 0 damaged, 1 with nothing to compare with",
        ),
    ],
)
def test_what_a_check_found_is_told_and_counted(checked: CheckResult, told: str) -> None:
    shown = lines([replace(DONE, checked=(checked,))])
    assert shown[-1] == told
    mark = {True: "sound", False: "DAMAGED", None: "not known"}[checked.is_sound]
    assert f"  model: {mark}: {checked.told}" in shown


def test_columns_that_do_not_fit_become_blocks_in_wide_terminals_too(
    snapshot: SnapshotAssertion,
) -> None:
    long = replace(DONE, score="f" * 80)
    assert lines([long], width=110)[0] == "done"
    assert lines([long], width=180)[0] == snapshot


def test_no_runs_is_a_friendly_line(snapshot: SnapshotAssertion) -> None:
    assert lines([]) == snapshot


def test_states_have_their_colour_and_names_are_no_markup() -> None:
    text = render([HALF], 120, now=NOW)
    assert any(str(span.style) == "bold red" for span in text.spans)
    assert "[bold]recipe" in text.plain


def test_no_control_character_of_a_name_reaches_the_terminal() -> None:
    odd = replace(HALF, name="a\x1b[2Jb", problems=("c\x1bd",), command="brimful watch \x1be")
    assert "\x1b" not in render([odd], 200, now=NOW).plain
    assert "\x1b" not in render([odd], 40, now=NOW).plain
