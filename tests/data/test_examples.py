"""From a recipe to encoded examples: splits, duplicates, lengths, and what is said about them."""

import json
from pathlib import Path

import numpy as np
import pytest
from fixture_types import MakeRecipe, Refuses
from json_lines import write_rows
from syrupy.assertion import SnapshotAssertion
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data import builtin
from brimful.data.examples import PreparedExamples, prepare_examples
from brimful.data.formats import Message
from brimful.data.splits import split_of

Fast = PreTrainedTokenizerFast


def rows(path: Path, *values: JsonDict) -> Path:
    return write_rows(path, values)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Forty short prompts and completions."""
    return rows(
        tmp_path / "pairs.jsonl",
        *(
            {"prompt": f"{number} and one is ", "completion": str(number + 1)}
            for number in range(40)
        ),
    )


def texts(
    prepared: PreparedExamples, tokenizer: Fast, split: str, *, learned: bool = False
) -> list[str]:
    found = prepared.splits[split]
    bounds = zip(found.offsets_E[:-1].tolist(), found.offsets_E[1:].tolist(), strict=True)
    kept = [
        found.tokens_N[start:end][found.is_target_N[start:end] | (not learned)].tolist()
        for start, end in bounds
    ]
    return [tokenizer.decode(ids) for ids in kept]


def test_every_row_is_an_example_of_one_split(
    pairs: Path, tuning: MakeRecipe, tokenizer: Fast
) -> None:
    """Prompts decide; nothing is lost; ids, marks, offsets and examples go together."""
    prepared = prepare_examples(tuning(pairs), tokenizer)
    found = {name: texts(prepared, tokenizer, name) for name in ("train", "validation")}
    assert sorted(found["train"] + found["validation"]) == sorted(
        f"{number} and one is {number + 1}<|endoftext|>" for number in range(40)
    )
    split = prepared.splits["validation"]
    assert [
        f"{example.prompt}{example.completion}<|endoftext|>" for example in split.examples
    ] == found["validation"]
    assert texts(prepared, tokenizer, "validation", learned=True) == [
        f"{example.completion}<|endoftext|>" for example in split.examples
    ]
    assert all(split_of(str(example.prompt), 0.2, 0) == "validation" for example in split.examples)
    assert (split.tokens_N.dtype, split.is_target_N.dtype, split.num_tokens) == (
        np.uint32,
        np.bool_,
        split.offsets_E[-1],
    )
    assert split.num_bytes == sum(len(example.completion) for example in split.examples)


def test_splits_of_the_source_are_kept(tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast) -> None:
    """As for text."""
    for name in ("train", "validation", "test"):
        rows(tmp_path / f"{name}.jsonl", {"prompt": name, "completion": "x"})
    prepared = prepare_examples(tuning(tmp_path), tokenizer)
    assert {
        name: [example.prompt for example in split.examples]
        for name, split in prepared.splits.items()
    } == {name: [name] for name in ("train", "validation", "test")}


def test_pairs_of_python_code_are_held_out_with_their_document(
    tuning: MakeRecipe, tokenizer: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a base model that was trained on the documents has not seen held-out pairs."""
    function = 'def f{0}(number):\n    """Add {0} to a number."""\n    return number + {0}\n'
    documents = [function.format(number) for number in range(30)]
    monkeypatch.setattr(builtin, "python_code", lambda: iter(documents))
    monkeypatch.setattr(builtin, "_made_rows", builtin._made_rows.__wrapped__)
    prepared = prepare_examples(tuning("builtin:python-code", 256), tokenizer)
    for name, split in prepared.splits.items():
        for example in split.examples:
            (document,) = [text for text in documents if example.completion.splitlines()[0] in text]
            assert split_of(document, 0.2, 0) == name


@pytest.mark.parametrize("duplicates", ["report", "drop"])
def test_prompts_that_stand_in_two_splits_are_counted_and_dropped_if_asked(
    tmp_path: Path,
    tuning: MakeRecipe,
    tokenizer: Fast,
    duplicates: str,
    snapshot: SnapshotAssertion,
) -> None:
    """Exactly or but for case and white space; from validation only, whatever the answer."""
    rows(
        tmp_path / "train.jsonl",
        *({"prompt": text, "completion": "x"} for text in ("One", "Two", "two")),
    )
    rows(
        tmp_path / "valid.jsonl",
        *({"prompt": text, "completion": "y"} for text in ("One", "one ", "Three")),
    )
    prepared = prepare_examples(tuning(tmp_path, duplicates=duplicates), tokenizer)
    kept = [example.prompt for example in prepared.splits["validation"].examples]
    assert kept == (["Three"] if duplicates == "drop" else ["One", "one ", "Three"])
    assert [prepared.report["leakage"]["validation"][kind] for kind in ("exact", "normalised")] == [
        1,
        2,
    ]
    assert prepared.report["notes"] == snapshot
    assert (
        "B204: 2 of these were dropped from validation and test" in prepared.report["notes"]
    ) == (duplicates == "drop")


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Short examples, and one of 30 characters that are all their own tokens."""
    long = {"prompt": "0123456789", "completion": "9876543210" * 2}
    rows(
        tmp_path / "train.jsonl",
        {"prompt": "1", "completion": "2"},
        long,
        {"prompt": "3", "completion": "4"},
    )
    rows(tmp_path / "valid.jsonl", {"prompt": "5", "completion": "6"})
    return tmp_path


def test_an_example_that_is_too_long_is_an_error_unless_the_recipe_says_what_to_do(
    uneven: Path, tuning: MakeRecipe, tokenizer: Fast, refuses: Refuses
) -> None:
    """sequence_length positions predict as many targets, so one token more than that fits: 10 + 20
    + end-of-text.
    """
    assert (
        prepare_examples(tuning(uneven, 30), tokenizer).report["splits"]["train"]["longest_tokens"]
        == 31
    )
    with refuses(DataError, names=["1 of 3", "29", "train.jsonl:2", "31 tokens"]):
        prepare_examples(tuning(uneven, 29), tokenizer)


def test_long_examples_are_cut_at_the_end_and_that_is_said(
    uneven: Path, tuning: MakeRecipe, tokenizer: Fast, snapshot: SnapshotAssertion
) -> None:
    """Such an answer has no end to learn."""
    prepared = prepare_examples(tuning(uneven, 15, long_documents="truncate"), tokenizer)
    assert texts(prepared, tokenizer, "train", learned=True) == [
        "2<|endoftext|>",
        "987654",
        "4<|endoftext|>",
    ]
    assert prepared.splits["train"].num_bytes == 1 + 6 + 1
    assert (
        prepared.report["splits"]["train"]["cut"],
        prepared.report["splits"]["train"]["dropped"],
    ) == (1, 0)
    assert prepared.report["notes"] == snapshot


def test_long_examples_are_dropped_and_that_is_said(
    uneven: Path, tuning: MakeRecipe, tokenizer: Fast, snapshot: SnapshotAssertion
) -> None:
    """By count, with the key that changes it; as sentences and as values."""
    prepared = prepare_examples(tuning(uneven, 15, long_documents="drop"), tokenizer)
    assert texts(prepared, tokenizer, "train") == ["12<|endoftext|>", "34<|endoftext|>"]
    assert prepared.report["splits"]["train"]["dropped"] == 1
    assert prepared.report["notes"] == snapshot
    (*_, entry) = prepared.report["not_learned"]
    assert {key: entry[key] for key in ("kind", "count", "of", "split")} == {
        "kind": "dropped",
        "count": 1,
        "of": 3,
        "split": "train",
    }


def test_examples_with_nothing_left_to_learn_are_an_error(
    uneven: Path, tuning: MakeRecipe, tokenizer: Fast, refuses: Refuses
) -> None:
    """With their number and the way out."""
    with refuses(DataError, names=["1 of 3", "train.jsonl:2", "data.long_documents=drop"]):
        prepare_examples(tuning(uneven, 9, long_documents="truncate"), tokenizer)


def test_a_split_of_which_everything_is_dropped_is_an_error(
    tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast, refuses: Refuses
) -> None:
    """Nothing trains on nothing."""
    rows(tmp_path / "train.jsonl", {"prompt": "123", "completion": "456"})
    rows(tmp_path / "valid.jsonl", {"prompt": "1", "completion": "2"})
    with refuses(DataError, names=["1 train"]):
        prepare_examples(tuning(tmp_path, 4, long_documents="drop"), tokenizer)


def test_an_empty_split_says_why(
    tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast, refuses: Refuses
) -> None:
    """Too few examples, or all of them duplicates."""
    with refuses(DataError, names=["1 example ", "0.2"]):
        prepare_examples(
            tuning(rows(tmp_path / "a.jsonl", {"prompt": "1", "completion": "2"})), tokenizer
        )
    for name in ("train", "valid"):
        rows(tmp_path / f"{name}.jsonl", {"prompt": "same", "completion": "x"})
    (tmp_path / "a.jsonl").unlink()
    with refuses(DataError):
        prepare_examples(tuning(tmp_path, duplicates="drop"), tokenizer)


def test_of_few_examples_at_least_one_is_held_out_for_each_split(
    tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast, snapshot: SnapshotAssertion
) -> None:
    """Rows with equal prompts stay together."""
    path = rows(
        tmp_path / "few.jsonl",
        *({"prompt": f"p{number // 2}", "completion": str(number)} for number in range(6)),
    )
    prepared = prepare_examples(tuning(path, validation=0.01, test=0.01), tokenizer)
    found = {
        name: {str(example.prompt) for example in split.examples}
        for name, split in prepared.splits.items()
    }
    assert sorted(prompt for prompts in found.values() for prompt in prompts) == ["p0", "p1", "p2"]
    assert prepared.report["notes"] == snapshot


@pytest.mark.parametrize(
    "options",
    [
        {"split_by": "position"},
        {"long_documents": "split"},
    ],
)
def test_options_that_cut_text_are_refused(
    pairs: Path, tuning: MakeRecipe, tokenizer: Fast, options: dict[str, str], refuses: Refuses
) -> None:
    """Examples are whole."""
    with refuses(DataError):
        prepare_examples(tuning(pairs, **options), tokenizer)


@pytest.mark.parametrize("template", ["auto", "chat"])
def test_text_prompts_are_messages_where_the_tokenizer_has_a_chat_template(
    pairs: Path,
    tuning: MakeRecipe,
    chat_tokenizer: Fast,
    template: str,
    snapshot: SnapshotAssertion,
) -> None:
    """And a note says so, and how to leave them as they stand."""
    asked = prepare_examples(tuning(pairs, template=template), chat_tokenizer)
    assert asked.splits["train"].examples[0].prompt == (Message("user", "0 and one is "),)
    assert texts(asked, chat_tokenizer, "train", learned=True)[0] == "1<|im_end|>"
    assert asked.report["notes"] == snapshot
    verbatim = prepare_examples(tuning(pairs, template="plain"), chat_tokenizer)
    assert texts(verbatim, chat_tokenizer, "train")[0] == "0 and one is 1<|endoftext|>"
    assert verbatim.report["notes"] == []


FORGETS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + ('<think></think>' if loop.last"
    " and m['role'] == 'assistant' else '') + m['content'] + '<|im_end|>\\n' }}{% endfor %}{% if"
    " add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_conversations_that_a_template_rewrites_are_several_examples_and_that_is_said(
    tmp_path: Path, tuning: MakeRecipe, chat_tokenizer: Fast, snapshot: SnapshotAssertion
) -> None:
    """Nothing is lost; data.turns=last keeps the last answers, and says what it leaves out."""
    talk = [{"role": role, "content": "{0} " + role} for role in ("user", "assistant") * 2]
    path = rows(
        tmp_path / "talks.jsonl",
        *(
            {
                "messages": [
                    turn | {"content": f"{n} and {turn['role']} {k}"} for k, turn in enumerate(talk)
                ]
            }
            for n in range(20)
        ),
    )
    same = prepare_examples(tuning(path, 200), chat_tokenizer)
    chat_tokenizer.chat_template = FORGETS
    each = prepare_examples(tuning(path, 200), chat_tokenizer)
    last = prepare_examples(tuning(path, 200, turns="last"), chat_tokenizer)
    assert [sum(s.num_examples for s in one.splits.values()) for one in (same, each, last)] == [
        20,
        40,
        20,
    ]
    learned = texts(each, chat_tokenizer, "train", learned=True)
    assert [text.startswith("<think></think>") for text in learned] == [True] * len(learned)
    assert set(texts(last, chat_tokenizer, "train")) < set(texts(each, chat_tokenizer, "train"))
    assert len({one.data_fingerprint for one in (same, each, last)}) == 3
    assert [one.report["notes"] for one in (same, each, last)] == snapshot


def test_the_template_comes_back_for_generation(
    pairs: Path, tuning: MakeRecipe, chat_tokenizer: Fast
) -> None:
    """With the recipe's stop tokens."""
    prepared = prepare_examples(tuning(pairs, stop=("<|im_start|>",)), chat_tokenizer)
    assert prepared.template.stop_ids == {0, 262, 263}


@pytest.mark.parametrize(
    "change",
    [
        {"loss_on": "all"},
        {"validation": 0.3},
        {"sequence_length": 65},
        {"template": "plain"},
        {"max_documents": 30},
    ],
)
def test_the_fingerprint_follows_what_is_learned(
    pairs: Path, tuning: MakeRecipe, chat_tokenizer: Fast, change: JsonDict
) -> None:
    """And stays the same when nothing changes."""
    first, again, other = (
        prepare_examples(tuning(pairs, **fields), chat_tokenizer) for fields in ({}, {}, change)
    )
    assert first.data_fingerprint == again.data_fingerprint != other.data_fingerprint
    assert np.array_equal(first.splits["train"].tokens_N, again.splits["train"].tokens_N)


def test_the_report_counts_what_there_is(pairs: Path, tuning: MakeRecipe, tokenizer: Fast) -> None:
    """It is JSON, and progress is told."""
    told: list[tuple[str, int, int | None]] = []
    prepared = prepare_examples(tuning(pairs), tokenizer, lambda *said: told.append(said))
    counts = json.loads(json.dumps(prepared.report))["splits"]
    assert {name: split["examples"] for name, split in counts.items()} == {
        name: split.num_examples for name, split in prepared.splits.items()
    }
    assert (
        counts["train"]["target_tokens"]
        == prepared.splits["train"].num_target_tokens
        < counts["train"]["tokens"]
    )
    assert told[-1] == ("tokenising", 40, 40)


def test_real_instructions_become_examples(
    shared_data: Path, tuning: MakeRecipe, tokenizer: Fast
) -> None:
    """GPTeacher's 4,535 rows under headings; every answer ends."""
    path = shared_data / "gpteacher_codegen" / "codegen-instruct.json.gz"
    prepared = prepare_examples(tuning(path, 4096, max_documents=500), tokenizer)
    split = prepared.splits["train"]
    assert sum(one.num_examples for one in prepared.splits.values()) == 500
    assert (split.tokens_N[split.offsets_E[1:] - 1] == 0).all()
    assert split.num_bytes == sum(len(example.completion.encode()) for example in split.examples)


def test_a_table_without_a_header_holds_examples_in_columns_by_number(
    tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast
) -> None:
    """As names: "0" and so on."""
    (tmp_path / "a.tsv").write_text(
        "".join(f"{number} and one is \t{number + 1}\n" for number in range(20))
    )
    prepared = prepare_examples(
        tuning(tmp_path / "a.tsv", header=False, columns={"prompt": "0", "completion": "1"}),
        tokenizer,
    )
    assert sorted(
        int(example.completion) for split in prepared.splits.values() for example in split.examples
    ) == list(range(1, 21))


def test_what_is_not_learned_is_in_the_notes_and_decides_the_fingerprint(
    tmp_path: Path, tuning: MakeRecipe, chat_tokenizer: Fast, refuses: Refuses
) -> None:
    """The notes come first. A name to leave out that nothing has is a mistake."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    chats = [
        [*turns, {"role": "user", "content": text}, {"role": "assistant", "content": "d"}]
        for text in "wxyz"
    ]
    path = rows(tmp_path / "chats.jsonl", *({"messages": chat, "id": "i"} for chat in chats))
    prepared = prepare_examples(tuning(path), chat_tokenizer)
    assert [note[:4] for note in prepared.report["notes"]] == ["B220", "B216"]
    assert set(texts(prepared, chat_tokenizer, "train", learned=True)) == {"d<|im_end|>"}
    ignored = prepare_examples(tuning(path, leave_out=["weight", "id"]), chat_tokenizer)
    assert set(texts(ignored, chat_tokenizer, "train", learned=True)) == {"b<|im_end|>d<|im_end|>"}
    assert ignored.data_fingerprint != prepared.data_fingerprint
    with refuses(DataError, names=["data.leave_out", "'wieght'", "'weight'"]):
        prepare_examples(tuning(path, leave_out=["wieght"]), chat_tokenizer)


RENDERED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("row", "choice", "kind"),
    [
        ({"text": RENDERED + "b<|im_end|>"}, "chat", "rendered"),
        ({"prompt": RENDERED, "completion": "b"}, "chat", "rendered"),
        ({"prompt": RENDERED, "completion": "b"}, "plain", "spelled"),
        ({"text": "{} <|im_end|> b"}, "chat", "spelled"),
        ({"instruction": "{} <|im_end|>", "output": "b"}, "chat", "spelled_tokens"),
        ({"prompt": "{}", "completion": "b"}, "plain", "joined"),
        ({"prompt": "{} ", "completion": "b"}, "plain", ""),
        ({"prompt": "{}", "completion": "\nb"}, "plain", ""),
        ({"prompt": "{}", "completion": "b"}, "chat", ""),
    ],
)
def test_special_tokens_and_words_that_grow_together_are_told(
    tmp_path: Path,
    tuning: MakeRecipe,
    chat_tokenizer: Fast,
    row: dict[str, str],
    choice: str,
    kind: str,
) -> None:
    """What is learned of them depends on the template."""
    filled = ({key: text.format(letter) for key, text in row.items()} for letter in "abcd")
    path = rows(tmp_path / "rows.jsonl", *filled)
    prepared = prepare_examples(tuning(path, 99, template=choice), chat_tokenizer)
    told = [(entry["kind"], entry["count"]) for entry in prepared.report["not_learned"]]
    assert told == [(kind, 4)] * bool(kind)


@pytest.mark.parametrize(
    ("kept", "told"),
    [({"weight": 0}, ["weight", "data.leave_out"]), ({"document": "a"}, [])],
    ids=["flagged", "learned"],
)
def test_where_no_row_is_left_the_error_says_what_became_of_them(
    tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast, kept: JsonDict, told: list[str]
) -> None:
    """It is no matter of shares."""
    path = rows(
        tmp_path / "rows.jsonl",
        *({"prompt": f"{n} ", "completion": "x"} | kept for n in range(20)),
    )
    with pytest.raises(DataError) as raised:
        prepare_examples(tuning(path), tokenizer)
    message = str(raised.value)
    assert ("no row is left to train on" in message) == bool(told)
    assert [word for word in told if word not in message] == []


def test_marks_that_only_verifiers_read_are_told(
    tmp_path: Path, tuning: MakeRecipe, tokenizer: Fast
) -> None:
    """The setting that is advised learns answers as they stand; answers that are marked stay."""
    path = rows(
        tmp_path / "rows.jsonl",
        *(
            {"question": f"{n} and one?", "answer": f"{n} #### {n}" if n % 2 else str(n + 1)}
            for n in range(20)
        ),
    )
    recipe = tuning(path)
    (told,) = prepare_examples(recipe, tokenizer).report["not_learned"]
    assert (told["code"], told["count"]) == ("B215", 10)
    advised = {"prompt": "question", "completion": "answer"}
    assert "data.columns='{prompt: question, completion: answer}'" in told["told"]

    data = recipe.data.model_copy(update={"columns": advised})
    prepared = prepare_examples(recipe.model_copy(update={"data": data}), tokenizer)

    assert [entry["code"] for entry in prepared.report["not_learned"]] == ["B218"]
    assert not any("<answer>" in text for text in texts(prepared, tokenizer, "train"))

    evaluation = recipe.evaluation.model_copy(update={"tasks": ["gsm8k"]})
    asked = recipe.model_copy(update={"evaluation": evaluation})
    assert prepare_examples(asked, tokenizer).report["not_learned"] == []
