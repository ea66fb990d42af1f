"""Examples as token ids that are longer than a sequence: cut, dropped or refused."""

from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from brimful.base.errors import DataError
from brimful.data.account import Account
from brimful.data.chat import EncodedExample
from brimful.data.formats import Example
from brimful.recipe import Recipe


@dataclass(frozen=True)
class Fitting:
    """The examples of a split that are at most one sequence long, or are cut to that.

    Attributes:
        kept: Those, as ids.
        num_examples: The number of examples of the split.
        num_cut, num_dropped: Number of examples that were cut, and that were dropped.
        first_long: The row of the first one that is too long.
        longest: Tokens of the longest.
        per_row: Examples of a row; more than one are the answers of a pair.
    """

    kept: list[tuple[Example, EncodedExample]]
    num_examples: int
    num_cut: int
    num_dropped: int
    first_long: str
    longest: int
    per_row: int = 1

    @classmethod
    def of(
        cls,
        name: str,
        pairs: list[tuple[Example, EncodedExample]],
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        per_row: int = 1,
    ) -> "Fitting":
        """Apply `data.long_documents`; an example of sequence_length + 1 tokens gives
        sequence_length targets. The `per_row` examples of a row are dropped together. Where the
        model writes the answers that it learns, no row is too long for its own.

        Raises:
            DataError: an example is too long and may not be, or nothing of an answer is left.
        """
        most, policy = recipe.sequence_length, recipe.data.long_documents
        if recipe.kind.draws_answers:
            return cls(pairs, len(pairs), 0, 0, "", 0)
        long = [pair for pair in pairs if len(pair[1].ids) > most + 1]
        first = long[0][0].where if long else ""
        longest = max((len(encoded.ids) for _, encoded in pairs), default=0)
        if long and policy == "error":
            example, encoded = long[0]
            raise DataError(
                f"{len(long)} of {len(pairs)} {name} examples are longer than sequence_length"
                f" {most}: the first is {example.where} with {len(encoded.ids)} tokens, the longest"
                f" has {longest}. Raise sequence_length, or"
                " choose data.long_documents=drop or data.long_documents=truncate."
            )
        if policy == "drop":
            kept = _short(pairs, most + 1, per_row)
            if not kept:
                raise DataError(
                    f"all {len(pairs)} {name} examples are longer than sequence_length {most}, so"
                    " all were dropped. Raise sequence_length, or choose"
                    " data.long_documents=truncate."
                )
            return cls(kept, len(pairs), 0, len(pairs) - len(kept), first, longest, per_row)
        kept = [(example, _cut(encoded, most + 1, tokenizer)) for example, encoded in pairs]
        if empty := [example.where for example, encoded in kept if not any(encoded.is_target)]:
            raise DataError(
                f"{len(empty)} of {len(pairs)} {name} examples have nothing left to learn within"
                f" sequence_length {most}, because their prompts fill it: the first is {empty[0]}."
                " Raise sequence_length, or drop them with data.long_documents=drop."
            )
        return cls(kept, len(pairs), len(long), 0, first, longest, per_row)

    def tell(self, name: str, account: Account) -> None:
        """Count the examples that were cut or dropped, of pairs the answers and the pairs."""
        for kind, count, each, unit in (
            ("cut", self.num_cut, 1, "answer"),
            ("dropped", self.num_dropped, self.per_row, "pair"),
        ):
            account.add(
                kind,
                self.first_long,
                count=count // each,
                total=self.num_examples // each,
                split=name,
                longest=self.longest,
                unit=unit if self.per_row > 1 else "",
            )


def _short(
    pairs: list[tuple[Example, EncodedExample]], length: int, per_row: int
) -> list[tuple[Example, EncodedExample]]:
    rows = zip(*[iter(pairs)] * per_row, strict=True)
    short = (row for row in rows if max(len(encoded.ids) for _, encoded in row) <= length)
    return [pair for row in short for pair in row]


def _cut(
    encoded: EncodedExample, length: int, tokenizer: PreTrainedTokenizerBase
) -> EncodedExample:
    if len(encoded.ids) <= length:
        return encoded
    ids, is_target = encoded.ids[:length], encoded.is_target[:length]
    learned = [token for token, is_one in zip(ids, is_target, strict=True) if is_one]
    num_bytes = len(tokenizer.decode(learned).encode())
    return replace(encoded, ids=ids, is_target=is_target, num_bytes=num_bytes)
