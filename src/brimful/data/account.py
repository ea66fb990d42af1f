"""What of a user's rows is not learned, or learned otherwise than the rows say: counted where it
happens, and told alike on the console, in data.json and by `brimful data`.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from brimful.base.text import clause, listed, plural
from brimful.base.types import Json, JsonDict
from brimful.base.warning_codes import coded
from brimful.runs.files import BAD_ROWS_FILE

_LISTED, _SHOWN = 12, 3
"""Names, and reasons of bad rows, that a sentence has."""


class AccountKind(NamedTuple):
    """What can become of something in the rows.

    Attributes:
        code: code of the warning, of `base/warning_codes.py`.
        told: the sentence, in which fields of `AccountEntry` stand; `{count}` has the unit behind.
        unit: what is counted, if `AccountEntry.unit` does not say otherwise.
        remedy: what changes it, a key of the recipe among it; empty: nothing does.
    """

    code: str
    told: str
    unit: str
    remedy: str = ""


KINDS: Mapping[str, AccountKind] = MappingProxyType(
    {
        "bad_rows": AccountKind(
            "B201",
            "{count} left out by data.bad_rows=drop, listed in"
            f" {BAD_ROWS_FILE} of the run folder",
            "row",
        ),
        "equal_answers": AccountKind(
            "B223", "left out, because both answers are equal and teach nothing: {count}", "pair"
        ),
        "opposed_pairs": AccountKind(
            "B223",
            "contradicted by another pair, which prefers the other of the same two answers:"
            " {count}",
            "pair",
            "Remove one of each two",
        ),
        "repeated_pairs": AccountKind(
            "B223", "the same prompt with the same two answers once more: {count}", "pair"
        ),
        "opposed_verdicts": AccountKind(
            "B223",
            "contradicted by another row, in which the same answer has the other label: {count}",
            "row",
            "Remove one of each two",
        ),
        "dialogues": AccountKind(
            "B201", "texts of Human: and Assistant: are read as messages: {count}", "row"
        ),
        "shared_prompts": AccountKind(
            "B201",
            "no column holds prompts, so what both texts begin with is the prompt: {count}",
            "row",
            "A column of prompts is named with data.columns='{{prompt: NAME}}'",
        ),
        "columns": AccountKind("B220", "columns not read, so not learned: {counted}", "row"),
        "fields": AccountKind(
            "B220", "fields of messages not read, so not learned: {counted}", "message"
        ),
        "flagged": AccountKind(
            "B216",
            "only read, not learned, as flagged by {names}: {count}",
            "answer",
            "To learn them all the same: data.leave_out='[{names}]'",
        ),
        "rows_flagged": AccountKind(
            "B216",
            "left out, because flagged as not to be learned ({names}): {count}",
            "row",
            "To learn them all the same, leave the flag out with data.leave_out",
        ),
        "marked": AccountKind(
            "B215",
            "answers are learned between <answer> and </answer>, where verifiers look for them:"
            " {count}",
            "row",
            "To learn them as they stand: data.columns='{{prompt: question, completion: answer}}'"
            " with the names of their columns",
        ),
        "no_answers": AccountKind(
            "B216",
            "flagged as to be learned ({names}), but of other roles, and only answers are learned:"
            " {count}",
            "message",
        ),
        "system": AccountKind(
            "B206", "the column {names} is put first as the system message: {count}", "row"
        ),
        "rendered": AccountKind(
            "B217",
            "rendered already: the chat template's special tokens ({names}) become tokens, and all"
            " of the text is learned, what users say among it: {count}",
            "row",
            "To learn answers only, give messages, or a prompt and a completion",
        ),
        "spelled": AccountKind(
            "B217",
            "special tokens that a text spells ({names}) are learned as letters, and end nothing:"
            " {count}",
            "row",
            "Remove them, or divide the text there",
        ),
        "spelled_tokens": AccountKind(
            "B217", "special tokens that a text spells ({names}) become tokens: {count}", "row"
        ),
        "joined": AccountKind(
            "B218",
            "no white space between prompt and completion, which run together: {count}",
            "row",
            "Put a space or a line break there",
        ),
        "left_out": AccountKind("B220", "left out as data.leave_out says: {names}", "row"),
        "system_twice": AccountKind(
            "B220",
            "column system not used, because a system message stands first already: {count}",
            "row",
        ),
        "long_words": AccountKind(
            "B222",
            "so long (16,384 characters or more) that the tokenizer learned from their parts:"
            " {count}",
            "word",
        ),
        "cut": AccountKind(
            "B205",
            "{split}: {count} are cut at sequence_length: what follows is not learned, nor"
            " where they end",
            "example",
            "Raise sequence_length{longest}, or leave them out with data.long_documents=drop",
        ),
        "dropped": AccountKind(
            "B205",
            "{split}: {count} are dropped, because they are longer than sequence_length",
            "example",
            "Raise sequence_length{longest}, or cut off their ends with"
            " data.long_documents=truncate",
        ),
    }
)
"""By name, in the order in which they are told."""


@dataclass
class AccountEntry:
    """What became of how much, of one kind.

    Attributes:
        kind: a key of `KINDS`.
        count: how many of its unit.
        first: place of the first of them; empty: unknown.
        names: what it is about, such as columns, with the number of times each.
        total: out of so many; None: not counted.
        split: of these examples; empty: of all.
        longest: tokens of the longest of them; 0: unknown.
        unit: what is counted; empty: what the kind says.
    """

    kind: str
    count: int = 0
    first: str = ""
    names: dict[str, int] = field(default_factory=dict)
    total: int | None = None
    split: str = ""
    longest: int = 0
    unit: str = ""

    @property
    def text(self) -> str:
        """One coded sentence."""
        kind = KINDS[self.kind]
        unit = self.unit or kind.unit
        count = plural(self.count, unit)
        if self.total:
            share = f"({self.count / self.total:.0%})"
            count = f"{self.count:,} of {plural(self.total, unit)} {share}"
        called = {name or "one without a name": times for name, times in self.names.items()}
        names = listed([*called], _LISTED)
        counted = listed([f"{name} ({times:,})" for name, times in called.items()], _LISTED)
        longest = clause(self.longest, f" (the longest has {self.longest:,} tokens)")
        told, remedy = (
            text.format(
                count=count, names=names, counted=counted, split=self.split, longest=longest
            )
            for text in (kind.told, kind.remedy)
        )
        has_place = self.first and "{count}" in kind.told
        place = clause(has_place, f"; the first: {self.first}")
        return coded(kind.code, f"{told}{place}{clause(remedy, f'. {remedy}.')}")

    def to_json(self) -> JsonDict:
        """For data.json and `brimful data --json`."""
        return {
            "kind": self.kind,
            "code": KINDS[self.kind].code,
            "count": self.count,
            "of": self.total,
            "unit": self.unit or KINDS[self.kind].unit,
            "names": self.names,
            "split": self.split,
            "first": self.first,
            "told": self.text,
        }


class BadRow(NamedTuple):
    """A row that is left out: where it stands, and why."""

    where: str
    reason: str


class Account:
    """Counts what is not learned while rows are read and encoded.

    Attributes:
        bad_rows: those that are left out.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], AccountEntry] = {}
        self.bad_rows: list[BadRow] = []

    def add(
        self,
        kind: str,
        where: str,
        *names: str,
        count: int = 1,
        total: int | None = None,
        split: str = "",
        longest: int = 0,
        unit: str = "",
    ) -> None:
        """Count something, unless `count` is 0; those of different splits are told apart. See
        `AccountEntry`.
        """
        if not count:
            return
        new = AccountEntry(kind, 0, where, {}, total, split, longest, unit)
        entry = self._entries.setdefault((kind, split), new)
        entry.count += count
        for name in names:
            entry.names[name] = entry.names.get(name, 0) + count

    def add_bad_rows(self, rows: list[BadRow]) -> None:
        """Count rows that are left out, and keep them."""
        if rows:
            self.add("bad_rows", " ".join(row.reason for row in rows[:_SHOWN]), count=len(rows))
            self.bad_rows += rows

    def forget(self, kind: str, names: Container[str] | None = None) -> None:
        """Tell nothing of a kind, or nothing of some names, as what it says does not apply."""
        for entry in [entry for entry in self if entry.kind == kind]:
            entry.names = {
                name: times
                for name, times in entry.names.items()
                if names is not None and name not in names
            }
            if not entry.names:
                del self._entries[kind, entry.split]

    @property
    def kinds(self) -> set[str]:
        """Those there are."""
        return {entry.kind for entry in self}

    def __iter__(self) -> Iterator[AccountEntry]:
        order = [*KINDS]
        return iter(sorted(self._entries.values(), key=lambda entry: order.index(entry.kind)))

    def told_in(self, report: Json) -> JsonDict:
        """A report for data.json with all of it, as sentences before its notes and as values."""
        return {
            **report,
            "notes": [*(entry.text for entry in self), *report.get("notes", ())],
            "not_learned": [
                *(entry.to_json() for entry in self),
                *report.get("not_learned", ()),
            ],
            **({"bad_rows": [*map(BadRow._asdict, self.bad_rows)]} if self.bad_rows else {}),
        }


@dataclass(frozen=True)
class Intake:
    """How rows are taken in, and what becomes of them.

    Attributes:
        leave_out: `data.leave_out`: fields, columns and roles that are left out.
        learns_all: whether all messages are learned, not answers only.
        account: counts what is not learned.
    """

    leave_out: frozenset[str] = frozenset()
    learns_all: bool = False
    account: Account = field(default_factory=Account)

    def kept(self, fields: Json, where: str) -> JsonDict:
        """The fields of a row or message that are not to be left out."""
        for name in sorted(self.leave_out & fields.keys()):
            self.account.add("left_out", where, name)
        return {name: value for name, value in fields.items() if name not in self.leave_out}
