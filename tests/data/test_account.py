"""What is not learned is counted, and told in the same words everywhere."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.warning_codes import WARNINGS, is_always_told
from brimful.data.account import KINDS, Account, Intake


def test_every_kind_has_a_code_and_says_what_there_is(snapshot: SnapshotAssertion) -> None:
    """One thing, and several of a number that is known."""
    told = {}
    for kind in KINDS:
        account = Account()
        account.add(kind, "a.jsonl:3", "weight", split="train", total=20, longest=1999)
        account.add(kind, "a.jsonl:5", "loss", count=2, split="train")
        (entry,) = account
        assert (entry.count, entry.first, entry.names) == (3, "a.jsonl:3", {"weight": 1, "loss": 2})
        assert KINDS[kind].code in WARNINGS
        told[kind] = entry.text
    assert told == snapshot


def test_splits_are_told_apart_and_kinds_in_their_order() -> None:
    account = Account()
    for split in ("train", "validation"):
        account.add("dropped", "row 1", count=2, split=split)
    account.add("columns", "row 2", "id")
    assert [(entry.kind, entry.split) for entry in account] == [
        ("columns", ""),
        ("dropped", "train"),
        ("dropped", "validation"),
    ]
    assert account.kinds == {"columns", "dropped"}


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "system"])
def test_what_is_lost_is_never_hidden(kind: str) -> None:
    """A limit of lines looks at the code."""
    account = Account()
    account.add(kind, "row 1")
    (entry,) = account
    assert is_always_told(f"note {entry.text}")


def test_fields_that_the_recipe_names_are_left_out_and_counted() -> None:
    intake = Intake(frozenset({"id"}))
    assert intake.kept({"id": 1, "text": "a"}, "row 1") == {"text": "a"}
    assert intake.kept({"text": "a"}, "row 2") == {"text": "a"}
    assert [(entry.kind, entry.count, entry.names) for entry in intake.account] == [
        ("left_out", 1, {"id": 1})
    ]
