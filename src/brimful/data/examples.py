"""From recipe to examples as token ids: read the rows, hold some out, compare prompts across
splits, encode, see to what is too long.

Suffixes: E examples of a split, N tokens of a split. Nothing is cached: thousands of examples take
about a second.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from brimful.base.arrays import Bools, Ints
from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.types import JsonDict, Progress
from brimful.base.warning_codes import all_coded, coded
from brimful.data.account import Account
from brimful.data.bins import offsets_of
from brimful.data.cache_places import cache_key
from brimful.data.chat import Template
from brimful.data.chat_template import use_own_chat_template
from brimful.data.fitting import Encoded, fitted
from brimful.data.formats import Example, Message, text_of_prompt
from brimful.data.leakage import leakage_notes, scan, without
from brimful.data.preferences import ReadExamples, reader_of
from brimful.data.sources import RowSource, open_rows
from brimful.data.splits import (
    SPLIT_SEED,
    SPLITS,
    check_not_empty,
    held_out_shares,
    split_of,
    split_shares,
)
from brimful.data.stratified import hold_out
from brimful.model.tokenizer import add_tokens, load_tokenizer
from brimful.recipe import DataRecipe, Recipe
from brimful.recipe.preference import reads_preferences
from brimful.recipe.rewards import environment_of, is_own, rewards_of

_ENCODED_AT_ONCE = 1024
_FIELDS = {
    "format",
    "columns",
    "template",
    "loss_on",
    "text_column",
    "validation",
    "test",
    "duplicates",
    "long_documents",
}
"""Of the recipe's data section: what decides which examples there are, where they belong and what
is learned of them.
"""
_DECIDING = {"flagged", "rows_flagged", "system", "rendered"}
"""Kinds of an account that decide what is learned."""
_LEAVING_OUT = {"equal_answers", "rows_flagged", "bad_rows"}
"""Kinds of rows that are left out."""
_WRAPPED = (
    "prompts are text, and asked as a user's message in the tokenizer's chat template, in training"
    " and afterwards; data.template=plain leaves them as they stand"
)


@dataclass(frozen=True)
class ExampleSplit:
    """One split as token ids.

    Attributes:
        tokens_N: uint32, examples end to end.
        is_target_N: Whether a token is learned; the first of an example never is.
        offsets_E: int64 [E + 1]; example e is `tokens_N[offsets_E[e]:offsets_E[e + 1]]`.
        num_bytes: UTF-8 bytes of the text that is learned.
        examples: What was encoded, in the same order.
    """

    tokens_N: NDArray[np.uint32]
    is_target_N: Bools
    offsets_E: Ints
    num_bytes: int
    examples: tuple[Example, ...]

    @property
    def num_examples(self) -> int:
        """E."""
        return len(self.examples)

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.tokens_N)

    @property
    def num_target_tokens(self) -> int:
        """Tokens that are learned."""
        return int(self.is_target_N.sum())

    @property
    def wheres(self) -> list[str]:
        """The row of each example."""
        return [example.where for example in self.examples]

    @property
    def lengths_E(self) -> Ints:  # noqa: N802 - shape suffix
        """Tokens of each example."""
        return np.diff(self.offsets_E)

    def part(self, numbers: Ints) -> "ExampleSplit":
        """Return some of the examples, in this order. Their bytes are exact where none was cut."""
        lengths = self.lengths_E[numbers]
        offsets = offsets_of(lengths)
        places = np.repeat(self.offsets_E[numbers] - offsets[:-1], lengths) + np.arange(offsets[-1])
        examples = tuple(self.examples[number] for number in numbers)
        share = _answer_bytes(examples) / _answer_bytes(self.examples)
        num_bytes = round(self.num_bytes * share)
        return ExampleSplit(
            self.tokens_N[places], self.is_target_N[places], offsets, num_bytes, examples
        )

    def asked(self, template: Template) -> "ExampleSplit":
        """Return the prompts alone, of which nothing is learned."""
        ids = [template.prompt_ids(example.prompt or "") for example in self.examples]
        tokens_N = np.fromiter(chain.from_iterable(ids), dtype=np.uint32)
        nothing_N = np.zeros(len(tokens_N), np.bool_)
        return ExampleSplit(tokens_N, nothing_N, offsets_of([*map(len, ids)]), 0, self.examples)


def _answer_bytes(examples: Iterable[Example]) -> int:
    return sum(len(example.completion.encode()) for example in examples)


@dataclass(frozen=True)
class PreparedExamples:
    """Everything fine-tuning needs of the data.

    Attributes:
        splits: train, validation, and test where there is one.
        data_fingerprint: Changes when the examples, their split, their order or what is learned of
            them do.
        template: What the examples were encoded by, to generate alike.
        report: What data.json says of it.
    """

    splits: dict[str, ExampleSplit]
    data_fingerprint: str
    template: Template
    report: JsonDict


def tokenizer_of(recipe: Recipe, source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a published model as a recipe tunes it: with its added tokens and its
    chat template.

    Raises:
        PlanError: it cannot be read; DataError: the recipe's chat template cannot.
    """
    tokenizer = load_tokenizer(source)
    add_tokens(tokenizer, recipe.data.added_tokens)
    use_own_chat_template(recipe.data, tokenizer)
    return tokenizer


def prepare_examples(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress | None = None,
) -> PreparedExamples:
    """Read, split and encode the examples of a recipe; those of a row, the answers of a pair, stay
    one after another.

    Args:
        recipe: Its kind, its `data` section, `sequence_length` and `sample.stop` count.
        tokenizer: The model's.
        progress: Called with what is going on.

    Raises:
        DataError: the data cannot be read, hold no examples, or do not support what the recipe
            asks.
    """
    data, (read, per_row) = recipe.data, reader_of(recipe)
    _check_options(data)
    template = Template.of(tokenizer, data.template, stop=recipe.sample.stop)
    source = open_rows(data)
    account = Account()
    held_out, few_notes = _labelled(source, data, account, read)
    _check_left_out(data, account)
    _check_there_are_rows(held_out, account)
    _forget_what_is_used(recipe, account)
    labelled = [(split, _as_asked(example, template)) for split, example in held_out]
    is_wrapped = any(new is not old for (_, new), (_, old) in zip(labelled, held_out, strict=True))
    _tell_texts(labelled, template, account)
    firsts = labelled[::per_row]
    scanned = scan([(split, text_of_prompt(example)) for split, example in firsts], progress)
    dropped = scanned.dropped(data)
    numbers = {per_row * row + number for row in dropped for number in range(per_row)}
    kept = list(without(labelled, numbers))
    counted = Counter(split for split, _ in kept)
    check_not_empty(counted, data, len(dropped), "example", "their prompts", more="")
    encoded = _encoded(kept, template, recipe, progress)
    if reads_preferences(recipe):
        _check_one_for_one(kept, encoded)
    others = [
        *all_coded("B201", source.notes),
        *all_coded("B202", few_notes),
        *all_coded("B204", leakage_notes(scanned, len(dropped), "prompt")),
    ]
    splits, counts = {}, {}
    for name in (name for name in SPLITS if name in encoded):
        fitting, cut = fitted(name, encoded[name], recipe, tokenizer, account, per_row)
        splits[name] = _split_of(fitting)
        counts[name] = {**_counts(splits[name], per_row), **cut}
    if is_wrapped:
        others.append(coded("B206", _WRAPPED))
    others += all_coded("B215", _about_turns(kept, encoded, template, data))
    others += all_coded("B221", _about_added_tokens(splits["train"], tokenizer, data))
    report = account.told_in(
        {
            "sources": [part.description for part in source.parts],
            "template": template.style,
            "splits": counts,
            "leakage": {**scanned.report, "dropped": len(dropped)},
            "notes": others,
        }
    )
    has_extras = any(example.has_tools for _, example in kept)
    fingerprint = _fingerprint(
        source,
        recipe,
        template,
        account,
        is_wrapped=is_wrapped,
        has_extras=has_extras,
    )
    return PreparedExamples(
        splits,
        fingerprint,
        template,
        report,
    )


def _fingerprint(
    source: RowSource,
    recipe: Recipe,
    template: Template,
    account: Account,
    *,
    is_wrapped: bool,
    has_extras: bool,
) -> str:
    """What identifies the data. Keys that earlier versions did not know are there only where they
    decide something, so that runs of these versions go on.
    """
    data = recipe.data
    later = {
        "tools": has_extras,
        "prompts": "messages" if is_wrapped and data.template == "auto" else "",
        "left": sorted(account.kinds & _DECIDING),
        "leave_out": sorted(data.leave_out),
        "turns": data.turns if data.turns != "each" else "",
        "bad_rows": data.bad_rows if account.bad_rows else "",
    }
    return cache_key(
        source=source.fingerprint,
        split_seed=SPLIT_SEED,
        sequence_length=recipe.sequence_length,
        template_identity=template.identity,
        **{name: value for name, value in later.items() if value},
        **data.model_dump(mode="json", include=_FIELDS),
    )


def _check_options(data: DataRecipe) -> None:
    if data.split_by == "position":
        raise DataError(
            "data.split_by=position cuts text, but examples are held out whole, by their prompts:"
            " use data.split_by=document."
        )
    if data.long_documents == "split":
        raise DataError(
            "data.long_documents=split would part an answer from its prompt: for examples choose"
            " error, truncate (the end is cut) or drop."
        )


def _check_left_out(data: DataRecipe, account: Account) -> None:
    """Raise DataError for a name in `data.leave_out` that the data do not have."""
    there = {name for entry in account if entry.kind == "left_out" for name in entry.names}
    for name in data.leave_out:
        if name not in there:
            unused = {name for entry in account for name in entry.names}
            raise DataError(
                f"data.leave_out: no column, field of a message or role is named"
                f" {name!r}{did_you_mean(name, unused)} Remove it from the list."
            )


def _check_there_are_rows(labelled: list[tuple[str, Example]], account: Account) -> None:
    """Raise DataError if every row to train on was left out."""
    left = [entry.text.partition(": ")[2] for entry in account if entry.kind in _LEAVING_OUT]
    if left and all(split != "train" for split, _ in labelled):
        raise DataError(f"no row is left to train on: {'; '.join(left)}. Correct or add rows.")


def _forget_what_is_used(recipe: Recipe, account: Account) -> None:
    """Do not tell that something of the rows is not read, or marked, which verifiers read."""
    if recipe.kind.draws_answers:
        takes_all = any(
            is_own(name) or environment_of(name) for name in rewards_of(recipe).verifiers
        )
        account.forget("columns", None if takes_all else {"answer"})
    if recipe.kind.draws_answers or recipe.evaluation.tasks:
        account.forget("marked")


def _labelled(
    source: RowSource,
    data: DataRecipe,
    account: Account,
    read: ReadExamples,
) -> tuple[list[tuple[str, Example]], list[str]]:
    """Examples with their splits, and notes. A split is the source's own, else by hash; of examples
    so few that the hash would leave a split empty, those with the smallest hashes are held out.
    """
    labelled: list[tuple[str, Example]] = []
    pools: list[tuple[int, int, tuple[float, float]]] = []
    for part in source.parts:
        shares, start = held_out_shares(part.splits, data), len(labelled)
        labelled += (
            (split_of(example.group, *shares), example)
            for example in read(part.splits["train"], data, account)
        )
        pools.append((start, len(labelled), shares))
        for split in SPLITS[1:]:
            labelled += (
                (split, example) for example in read(part.splits.get(split, ()), data, account)
            )
    there = {split for split, _ in labelled}
    if all(split in there for split, share in split_shares(data).items() if share > 0):
        return labelled, []
    for start, end, shares in pools:
        examples = [example for _, example in labelled[start:end]]
        groups = [example.group for example in examples]
        splits = hold_out(groups, [""] * len(groups), *shares, seed=SPLIT_SEED)
        labelled[start:end] = zip(splits, examples, strict=True)
    counts = Counter(split for split, _ in labelled)
    listed = ", ".join(f"{counts[split]} {split}" for split in SPLITS if counts[split])
    return labelled, [
        f"{len(labelled)} examples are few, so at least one is held out for each split: {listed}"
    ]


def _as_asked(example: Example, template: Template) -> Example:
    """A prompt that is text is a user's message for a model that is asked by a chat template."""
    prompt = example.prompt
    if template.style == "chat" and isinstance(prompt, str) and not template.is_rendered(prompt):
        return replace(example, prompt=(Message("user", prompt),))
    return example


def _tell_texts(labelled: list[tuple[str, Example]], template: Template, account: Account) -> None:
    """Count rows that spell special tokens, and prompts and completions that become one word."""
    told = set[tuple[str, str]]()
    for _, example in labelled:
        prompt, completion, where = example.prompt, example.completion, example.where
        texts = [completion]
        if isinstance(prompt, str):
            texts.append(prompt)
        texts += [message.content for message in example.messages or ()]
        names = sorted(set[str]().union(*map(template.spelled, texts)))
        kind = "spelled"
        if isinstance(prompt, tuple) and template.style == "chat":
            kind = "spelled_tokens"
        elif not isinstance(prompt, tuple) and template.is_rendered(prompt or completion):
            kind = "rendered"
        elif isinstance(prompt, str) and prompt.strip():
            is_apart = prompt[-1:].isspace() or completion[:1].isspace()
            _add_once(account, told, "joined", where, is_there=not is_apart)
        _add_once(account, told, kind, where, *names, is_there=bool(names))


def _add_once(
    account: Account, told: set[tuple[str, str]], kind: str, where: str, *names: str, is_there: bool
) -> None:
    """Count a row once, of whose answers there may be several."""
    if is_there and (kind, where) not in told:
        account.add(kind, where, *names)
        told.add((kind, where))


def _encoded(
    labelled: list[tuple[str, Example]],
    template: Template,
    recipe: Recipe,
    progress: Progress | None,
) -> dict[str, Encoded]:
    data, done = recipe.data, 0
    encoded: dict[str, Encoded] = {}
    for split in SPLITS:
        examples = [example for name, example in labelled if name == split]
        for start in range(0, len(examples), _ENCODED_AT_ONCE):
            chunk = examples[start : start + _ENCODED_AT_ONCE]
            results = template.encode(chunk, data.loss_on, data.turns)
            encoded.setdefault(split, []).extend((result.example, result) for result in results)
            done += len(chunk)
            if progress:
                progress("tokenising", done, len(labelled))
    return encoded


def _check_one_for_one(labelled: list[tuple[str, Example]], encoded: dict[str, Encoded]) -> None:
    """Raise DataError if an answer has become several examples."""
    made = Counter(example.where for each in encoded.values() for example, _ in each)
    made.subtract(example.where for _, example in labelled)
    if parted := [where for where, count in made.items() if count]:
        raise DataError(
            f"{parted[0]}: an answer of several turns, whose first ones the chat template rewrites"
            " once others follow, so that it cannot be compared as one. data.turns=last compares"
            " the last turn of each answer."
        )


def _about_turns(
    labelled: list[tuple[str, Example]],
    encoded: dict[str, Encoded],
    template: Template,
    data: DataRecipe,
) -> Iterator[str]:
    """Yield what is not learned as the rows stand."""
    num_rows, num_examples = len(labelled), sum(map(len, encoded.values()))
    if num_examples > num_rows:
        yield (
            "the chat template rewrites earlier messages once others follow, as it drops their"
            f" thoughts, so {num_rows:,} conversations are learned as {num_examples:,} examples:"
            " every answer after the messages before it as the template writes them then."
            " data.turns=last learns the last answer of each only"
        )
    if data.turns == "last":
        answers = [
            message.is_learned_answer
            for _, example in labelled
            for message in (example.messages or ())[:-1]
        ]
        if any(answers):
            yield (
                f"data.turns=last: {sum(answers):,} earlier answers are read, not learned;"
                " data.turns=each learns them, too"
            )
    if template.opens_thought and data.loss_on == "completion":
        yield (
            "the chat template starts an answer within a thought, as the model does when it is"
            " asked; an answer that has none closes it first, so the model learns to answer without"
            " thinking"
        )


def _about_added_tokens(
    train: ExampleSplit, tokenizer: PreTrainedTokenizerBase, data: DataRecipe
) -> Iterator[str]:
    """Yield what training can not teach of `data.added_tokens`."""
    there = set(np.unique(train.tokens_N).tolist())
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in data.added_tokens}
    if absent := [token for token, number in ids.items() if number not in there]:
        yield (f"data.added_tokens: no training example holds {', '.join(absent)}: not learned")


def _split_of(pairs: Encoded) -> ExampleSplit:
    tokens_N = np.fromiter(
        chain.from_iterable(encoded.ids for _, encoded in pairs), dtype=np.uint32
    )
    is_target_N = np.fromiter(
        chain.from_iterable(encoded.is_target for _, encoded in pairs), dtype=np.bool_
    )
    offsets_E = offsets_of([len(encoded.ids) for _, encoded in pairs])
    return ExampleSplit(
        tokens_N,
        is_target_N,
        offsets_E,
        sum(encoded.num_bytes for _, encoded in pairs),
        tuple(example for example, _ in pairs),
    )


def _counts(split: ExampleSplit, per_row: int) -> dict[str, int]:
    return {
        "examples": split.num_examples,
        **({"pairs": split.num_examples // per_row} if per_row > 1 else {}),
        "tokens": split.num_tokens,
        "target_tokens": split.num_target_tokens,
        "target_bytes": split.num_bytes,
        "longest_tokens": int(split.lengths_E.max()),
    }
