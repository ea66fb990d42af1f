"""How much a recipe's data hold, before they are read: what was published of data sets of the hub,
the sizes of files, and a look of a second into them. Nothing is downloaded. No torch.
"""

import json
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.errors import BrimfulError
from brimful.base.kept_values import shipped_table
from brimful.base.text import plural
from brimful.base.types import JsonDict
from brimful.base.units import format_bytes
from brimful.recipe import DataRecipe, Recipe
from brimful.recipe.data import PACKED_ENDS, TABLE_ENDS
from brimful.recipe.rft import QuestionsRecipe

if TYPE_CHECKING:
    from brimful.data.rows import Row
    from brimful.data.sources import Documents, Rows

OWN_BYTES_PER_TOKEN = (
    (512, 2.11),
    (1024, 2.61),
    (2048, 3.09),
    (4096, 3.53),
    (8192, 3.96),
    (16_384, 4.29),
    (32_768, 4.52),
    (50_257, 4.60),
)
"""Bytes of a token by vocabulary: byte-level BPE trained on WikiText-2, its validation text
(measured 2026-11-27); of other text it is a guess.
"""
PUBLISHED_BYTES_PER_TOKEN = 4.0
"""Bytes of a token of a published tokenizer (assumption; English 4.4, code 3.4)."""
TEMPLATE_TOKENS = 10
"""Tokens that a template adds to the texts of an example (assumption)."""
VALUE_BYTES = 4
"""What Arrow keeps beside each text."""
ANSWERS_OF_PAIR = 2
LOOK_S = 0.5
"""CPU time for a look into the files of a split."""
_CONVERSION = "builtin:unit-conversion"
_MADE_ROWS = 200
_SIZED_BYTES = 1 << 23
"""Text files of more than this are not read, as their size says enough."""


@dataclass(frozen=True)
class Amount:
    """What a split holds.

    Attributes:
        rows: Documents, or examples.
        num_bytes: The number of bytes of their text.
    """

    rows: float
    num_bytes: float

    def times(self, share: float) -> "Amount":
        return Amount(self.rows * share, self.num_bytes * share)


@dataclass(frozen=True)
class Counted:
    """How much a recipe's data hold, as planning counts before they are read.

    Attributes:
        train: Sequences of one epoch; examples where a step counts those.
        validation: The same of the validation split.
        mean_tokens: The mean number of tokens of an example; None where sequences are full.
        about: How this is known.
    """

    train: int
    validation: int
    mean_tokens: float | None
    about: str


def count(recipe: Recipe) -> Counted | None:
    """Return how much a recipe's data hold; None where that is not known without reading them."""
    data, found, told = recipe.data, dict[str, Amount](), dict[str, None]()
    try:
        for path in data.paths:
            splits, about = _splits_of(path, recipe)
            told[about] = None
            for name, amount in splits.items():
                before = found.get(name, Amount(0, 0))
                found[name] = Amount(before.rows + amount.rows, before.num_bytes + amount.num_bytes)
    except (BrimfulError, OSError, NotKnownYet):
        return None
    if "train" not in found:
        return None
    train, held = _limited(found["train"], data), {}
    if recipe.rft is not None and recipe.kind.compares_answers:
        questions = num_questions(recipe)
        if questions is None:
            return None
        pairs = questions * recipe.rft.pairs_per_prompt * recipe.rft.rounds
        # Their answers count as long as the demonstrations.
        train = train.times(ANSWERS_OF_PAIR * pairs / recipe.kind.rows_per_sample / train.rows)
        most = f"at most {pairs:,} pairs of a right and a wrong answer to {questions:,} questions"
        told = {most: None}
    for name, share in (("validation", data.validation), ("test", data.test)):
        held[name] = found.get(name) or train.times(share)
    left = 1 - sum(getattr(data, name) for name in held if name not in found)
    return _counted(recipe, train.times(left), held["validation"], "; ".join(told))


def not_here(data: DataRecipe) -> list[str]:
    """Return those of `data.path` that name files or folders which are not there."""
    from brimful.data.hub import HUB_ID  # noqa: PLC0415
    from brimful.data.sources import is_local  # noqa: PLC0415

    named = [path for path in data.paths if not path.startswith("builtin:")]
    files = [path for path in named if is_local(path) or not HUB_ID.fullmatch(path)]
    return [path for path in files if not Path(path).expanduser().exists()]


def num_questions(recipe: Recipe) -> int | None:
    """Return how many questions a round of a recipe asks; None where that is not known without
    reading them, or where it has no rounds.
    """
    if recipe.rft is None:
        return None
    known, most = _known_questions(recipe, recipe.rft.questions), recipe.rft.questions.max_questions
    if known is None or most is None:
        return most if known is None else known
    return min(known, most)


def _known_questions(recipe: Recipe, asked: QuestionsRecipe) -> int | None:
    from brimful.data.conversion import NUM_ROWS  # noqa: PLC0415 - for rounds alone

    if str(asked.path).startswith(_CONVERSION):
        return NUM_ROWS[asked.split]
    if isinstance(asked.path, str) and (
        published := published_rows(asked.path, asked.config_name, [asked.split])
    ):
        return published
    as_examples = recipe.model_copy(update={"method": "sft", "data": asked.as_data})
    try:
        looks = [_looked_into(path, as_examples)[0] for path in as_examples.data.paths]
        return round(sum(found[asked.split].rows for found in looks))
    except (BrimfulError, OSError, NotKnownYet, KeyError):
        return None


def bytes_per_token(recipe: Recipe) -> float:
    """Return the expected bytes of a token of a recipe's tokenizer."""
    if isinstance(recipe.model, str):
        return PUBLISHED_BYTES_PER_TOKEN
    vocabulary = recipe.own_tokenizer.vocabulary
    if vocabulary is None:
        return 1.0
    sizes = [size for size, _ in OWN_BYTES_PER_TOKEN]
    place = min(max(1, bisect_left(sizes, vocabulary)), len(sizes) - 1)
    (small, low), (large, high) = OWN_BYTES_PER_TOKEN[place - 1 : place + 1]
    share = math.log(vocabulary / small) / math.log(large / small)
    return low + min(1.0, share) * (high - low)


class NotKnownYet(Exception):
    """What a source holds is not known without reading it."""


def _counted(recipe: Recipe, train: Amount, validation: Amount, about: str) -> Counted:
    length, size = recipe.sequence_length, bytes_per_token(recipe)
    if recipe.kind.rows == "documents" and recipe.data.layout == "stream":
        rows = [max(1, round(each.num_bytes / size / length)) for each in (train, validation)]
        return Counted(rows[0], rows[1], None, about)
    counts = [max(1, round(each.rows)) for each in (train, validation)]
    mean = min(length, train.num_bytes / max(1.0, train.rows) / size + TEMPLATE_TOKENS)
    return Counted(counts[0], counts[1], mean, about)


def _limited(train: Amount, data: DataRecipe) -> Amount:
    most = data.max_documents
    return train if most is None or most >= train.rows else train.times(most / train.rows)


def _splits_of(path: str, recipe: Recipe) -> tuple[dict[str, Amount], str]:
    """Return what the splits of one `data.path` hold, and how that is known."""
    is_text = recipe.kind.rows == "documents"
    name = path if is_text or not path.startswith("builtin:") else f"{path} rows"
    row = hub_counts().get((name, recipe.data.config_name))
    if row is None or Path(path).exists():
        return _looked_into(path, recipe)
    if not row["bytes"]:
        raise NotKnownYet
    columns = 1 if is_text else 2
    share = 1 - row.get("repeated", 0.0)
    splits = {
        name: Amount(rows, share * row["bytes"][name] - columns * VALUE_BYTES * rows)
        for name, rows in row["rows"].items()
    }
    return splits, f"as published: {row['source']}, read {row['read']}"


@lru_cache(maxsize=1)
def hub_counts() -> Mapping[tuple[str, str | None], JsonDict]:
    """The rows of hub_counts.toml by name and configuration."""
    rows = shipped_table(__package__, "hub_counts.toml")["data_set"]
    return {(row["name"], row.get("config")): row for row in rows}


def published_rows(name: str, config: str | None, splits: list[str]) -> int | None:
    """Return how many rows splits of a data set of the hub hold together; None: not known."""
    rows = hub_counts().get((name, config), {}).get("rows", {})
    return sum(rows.get(split, 0) for split in splits) or None


def _looked_into(path: str, recipe: Recipe) -> tuple[dict[str, Amount], str]:
    """Count what files hold, or estimate it from their beginnings."""
    # What reads data takes a tenth of a second to import.
    from brimful.data.conversion import NUM_ROWS  # noqa: PLC0415
    from brimful.data.sources import is_local, open_rows, open_source  # noqa: PLC0415

    if not is_local(path):
        raise NotKnownYet
    is_text = recipe.kind.rows == "documents"
    data = DataRecipe.model_validate({**recipe.data.model_dump(), "path": path})
    (part,) = (open_source(data) if is_text else open_rows(data)).parts
    if part.is_builtin:
        if is_text:  # making them takes seconds
            raise NotKnownYet
        amount = _look(part.splits["train"], recipe, most=_MADE_ROWS).amount
        made = amount.times(NUM_ROWS["train"] / amount.rows)
        return {"train": made}, f"{path}, made on the spot"
    looks = {
        name: _look_at_files(items, part.files_by_split.get(name, ()), recipe)
        for name, items in part.splits.items()
    }
    found = {name: look.amount for name, look in looks.items()}
    if all(look.ended for look in looks.values()):
        return found, f"counted in {plural(len(part.files), 'file')}"
    seen = format_bytes(sum(look.read_bytes for look in looks.values()))
    whole = format_bytes(sum(file.stat().st_size for file in part.files))
    return found, f"estimated from {seen} of {whole}"


def _look_at_files(items: "Documents | Rows", files: Sequence[Path], recipe: Recipe) -> "Beginning":
    """Return what a split holds, from its size where it is long text, else from its beginning."""
    from brimful.data.sources import Documents  # noqa: PLC0415

    size = sum(file.stat().st_size for file in files)
    ends = tuple(file.name.lower() for file in files)
    is_packed = any(end.endswith((*PACKED_ENDS, ".parquet")) for end in ends)
    is_stream = isinstance(items, Documents) and recipe.data.layout == "stream"
    is_plain = not is_packed and not any(end.endswith(TABLE_ENDS) for end in ends)
    if is_stream and is_plain and size > _SIZED_BYTES:
        return Beginning(Amount(1, size), size, ended=True)
    look = _look(items, recipe)
    if look.ended:
        return look
    if is_packed or not look.read_bytes:
        raise NotKnownYet
    return Beginning(look.amount.times(size / look.read_bytes), look.read_bytes, ended=False)


@dataclass(frozen=True)
class Beginning:
    """What the beginning of a split holds: of text, and as bytes of files; and whether that is
    all of it.
    """

    amount: Amount
    read_bytes: float
    ended: bool


def _look(items: "Documents | Rows", recipe: Recipe, most: int | None = None) -> Beginning:
    rows, num_bytes, read_bytes = 0, 0, 0
    until_s = time.thread_time() + LOOK_S
    for num_bytes_of_one, read_bytes in islice(_measured(items, recipe), most):
        rows, num_bytes = rows + 1, num_bytes + num_bytes_of_one
        if time.thread_time() > until_s:
            return Beginning(Amount(rows, num_bytes), read_bytes, ended=False)
    return Beginning(Amount(rows, num_bytes), read_bytes, ended=True)


def _measured(items: "Documents | Rows", recipe: Recipe) -> Iterator[tuple[int, int]]:
    """Yield of each document or example the bytes of its text, of a pair their mean, and those of
    files read so far.
    """
    from brimful.data.formats import text_of_prompt  # noqa: PLC0415
    from brimful.data.preferences import reader_of  # noqa: PLC0415
    from brimful.data.rows import cell_of  # noqa: PLC0415
    from brimful.data.sources import Documents  # noqa: PLC0415

    read_bytes = 0
    if isinstance(items, Documents):
        for text in items:
            size = len(text.encode())
            read_bytes += size
            yield size, read_bytes
        return

    def noted(rows: "Rows") -> "Iterator[Row]":
        nonlocal read_bytes
        for row in rows:
            read_bytes += len(json.dumps(row.columns, default=str))
            yield row

    if recipe.kind.gives_labels:
        for row in noted(items):
            cell = cell_of(row.columns, recipe.data.text_column, row.where)
            yield len(str(cell).encode()), read_bytes
        return
    read, per_row = reader_of(recipe)
    examples = read(noted(items), recipe.data, None)
    for sample in zip(*[examples] * per_row, strict=True):
        whole = [text_of_prompt(example) + example.completion for example in sample]
        yield len("".join(whole).encode()) // len(sample), read_bytes
