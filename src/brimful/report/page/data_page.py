"""What a report says of the data: what each split holds, the tokenizer, and texts that stand there
more than once.
"""

from collections.abc import Mapping

from brimful.base.types import Texts
from brimful.base.units import format_bytes
from brimful.report.labels import MOST_LABELS, label_text
from brimful.report.page.facts import facts_table
from brimful.report.table import Cell, Table, table_of
from brimful.runs.facts import RepeatCounts, TextPlace
from brimful.runs.folder import RunFolder
from brimful.runs.scores import ordered_splits

DASH = Cell("-")
DOCUMENTS = {
    "documents": "Documents",
    "bytes": "Text",
    "characters": "Characters",
    "tokens": "Tokens",
}
EXAMPLES = {
    "examples": "Examples",
    "tokens": "Tokens",
    "target_tokens": "Learned tokens",
    "longest_tokens": "Longest",
    "cut": "Cut",
    "dropped": "Dropped",
}
REPEATED_TEXTS = {
    "texts": "Texts",
    "exact": "Repeated exactly",
    "normalised": "But for case and spaces",
    "near": "Nearly",
    "repeated": "Repeated in all",
    "conflicts": "With other labels elsewhere",
}


def split_table(run: RunFolder) -> Table | None:
    """What each split holds: texts, examples or documents, whichever the data name."""
    splits = run.data.splits.values()
    if any(split.examples is not None for split in splits):
        return _by_split(run.data.splits, EXAMPLES)
    if any(split.texts is not None for split in splits):
        return _text_table(run)
    return _by_split(run.data.splits, DOCUMENTS)


def _by_split(splits: Mapping[str, object], columns: Texts) -> Table | None:
    """A row for each split; `columns` are headings by attribute."""
    rows = [
        (name, *(_count(getattr(splits[name], key), key) for key in columns))
        for name in ordered_splits(splits)
    ]
    return table_of(("Split", *columns.values()), rows)


def _count(value: float | None, key: str = "") -> Cell:
    return Cell(value, format_bytes) if key == "bytes" else Cell(value)


def _text_table(run: RunFolder) -> Table | None:
    """Texts of every split and how long they are."""
    rows = []
    for name in ordered_splits(run.data.splits):
        split = run.data.splits[name]
        lengths = (split.words.median, split.words.p99, split.words.most)
        rows.append((name, *(_known(value) for value in (split.texts, *lengths))))
    return table_of(("Split", "Texts", "Words, median", "99 % have at most", "Longest"), rows)


def _known(value: float | None) -> Cell:
    return DASH if value is None else Cell(value)


def tokenizer_table(run: RunFolder) -> Table | None:
    """Size and compression of the tokenizer."""
    return facts_table(run.data.tokenizer)


def leakage_table(run: RunFolder, texts: str = "documents") -> Table | None:
    """Documents (or prompts) that stand in training already: word for word, and after ignoring case
    and white space.
    """
    columns = {
        "documents": texts.capitalize(),
        "exact": "Repeated exactly",
        "normalised": "Repeated but for case and spaces",
    }
    return _by_split(run.data.leakage, columns)


def label_count_table(run: RunFolder) -> Table | None:
    """How many texts of each split have each label, with its share, the most frequent first; None
    where the data do not say.
    """
    splits = {name: run.data.splits[name] for name in ordered_splits(run.data.splits)}
    splits = {name: split for name, split in splits.items() if split.labels}
    labels = list(dict.fromkeys(label for split in splits.values() for label in split.labels))
    num_hidden = len(labels) - MOST_LABELS
    if num_hidden > 0:
        labels.sort(key=lambda label: -sum(each.labels.get(label, 0) for each in splits.values()))
    rows = [
        (label, *(_with_share(each.labels.get(label, 0), each.texts) for each in splits.values()))
        for label in labels[:MOST_LABELS]
    ]
    if num_hidden > 0:
        rows.append((f"{num_hidden} more", *("" for _ in splits)))
    return table_of(("Label", *splits), rows)


def _with_share(count: float, texts: float | None) -> str:
    return f"{count:,.0f} ({count / texts:.1%})" if texts else f"{count:,.0f}"


def duplicate_table(run: RunFolder) -> Table | None:
    """Texts of each split that repeat earlier ones, and those whose labels contradict one
    another.
    """
    splits: Mapping[str, RepeatCounts] = run.data.duplicates.splits
    rows = [
        (name, *(_known(getattr(splits[name], key)) for key in REPEATED_TEXTS))
        for name in ordered_splits(splits)
    ]
    return table_of(("Split", *REPEATED_TEXTS.values()), rows)


def repeat_table(run: RunFolder) -> Table | None:
    """A few texts that repeat others, with both places and labels."""
    rows = [
        (_place(each), each.kind, each.text, _place(each.of), each.of.text)
        for each in run.data.duplicates.examples
        if each.of
    ]
    return table_of(("Text", "Kind", "", "Repeats", ""), rows)


def conflict_table(run: RunFolder) -> Table | None:
    """A few texts that stand there with different labels."""
    rows = [
        (each.text, "; ".join(map(_place, each.rows)))
        for each in run.data.duplicates.conflict_examples
    ]
    return table_of(("Text", "Labels"), rows)


def _place(text: TextPlace) -> str:
    """`spam in test, messages.tsv:12`."""
    return f"{label_text(text.label)} in {text.split}, {text.where}"
