"""One output that is replaced in place, at a pace that a notebook bears."""

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.notebook import cell


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_board_has_one_output_whatever_is_shown(shown: Any) -> None:
    clock = _Clock()
    board = cell.Board(clock)
    for step in range(50):
        clock.now += 2.0
        board.show(f"<b>{step}</b>", f"step {step}")

    assert [output["text/plain"] for output in shown.outputs] == ["step 49"]
    assert shown.updates == 49


def test_what_comes_too_soon_or_says_the_same_is_left_out_unless_it_is_the_end(shown: Any) -> None:
    clock = _Clock()
    board = cell.Board(clock)
    for step in range(50):
        clock.now += 0.1
        board.show(f"<b>{step}</b>", f"step {step}")
    assert shown.updates <= 5
    board.show("<b>end</b>", "end", now=True)
    before = shown.updates
    board.show("<b>end</b>", "end", now=True)

    assert (shown.updates, shown.text) == (before, "end")


def test_a_cell_that_is_interrupted_while_it_shows_its_first_page_goes_on_with_the_same_output() -> (
    None
):
    ids: list[str] = []

    def display(data: dict[str, str], *, raw: bool, display_id: str) -> None:
        ids.append(display_id)
        if len(ids) == 1:
            raise KeyboardInterrupt

    board = cell.Board(_Clock(), display)
    with pytest.raises(KeyboardInterrupt):
        board.show("0", "0")
    board.show("1", "1", now=True)

    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_after_ten_minutes_updates_come_seldom(shown: Any) -> None:
    clock = _Clock()
    board = cell.Board(clock)
    board.show("0", "0")
    clock.now += cell.OFTEN_FOR_S
    for step in range(100):
        clock.now += 1.0
        board.show(str(step), str(step))

    assert shown.updates <= 100 / cell.SELDOM_S + 1


def test_outside_a_notebook_every_helper_says_what_to_do_in_a_terminal() -> None:
    import brimful.notebook as nb

    calls = [
        nb.gpu,
        nb.drive,
        *(
            lambda helper=helper: helper("tiny")
            for helper in (nb.plan, nb.train, nb.watch, nb.examples, nb.report, nb.download)
        ),
    ]
    for call in [*calls, lambda: nb.push("tiny", "you/tiny")]:
        with pytest.raises(RequestError, match=r"this is none\. In a terminal: brimful plan"):
            call()


def test_an_error_on_purpose_is_one_message_in_a_notebook(snapshot: SnapshotAssertion) -> None:
    assert RequestError("too small")._render_traceback_() == snapshot
