"""Shapes in which users bring examples to tune on: each is written into a folder, with what must be
learned of it, or what the refusal must say. `first_hour.py` trains on them.
"""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

WORDS = ("the", "cat", "sees", "a", "tree", "and", "dog", "likes", "rain", "while", "we", "walk")
NUM_ROWS = 60
Row = Mapping[str, object]


@dataclass(frozen=True)
class Shape:
    """Data in one shape.

    Attributes:
        path: Of the file or folder, in the folder of shapes.
        write: Writes it there.
        settings: Of the recipe, beside data.path.
        learned: What the learned tokens of each row must be, but for white space and tokens that
            end an answer; with the row's ANSWER or NUMBER. Empty: the run is refused.
        rows: Examples that are learned or held out.
        says: Regular expressions of which each must occur in what is printed.
    """

    path: str
    write: Callable[[Path], object]
    settings: str = ""
    learned: str = "ANSWER"
    rows: int = NUM_ROWS
    says: tuple[str, ...] = ()


def pair(number: int) -> tuple[str, str]:
    """A question and its answer, which occurs in no other row."""
    drawn = random.Random(number)
    answer = f"{' '.join(drawn.choices(WORDS, k=3))} {number}"
    return f"Say these words: {answer.upper()}", answer


PAIRS = [pair(number) for number in range(NUM_ROWS)]


def named(*columns: str) -> list[Row]:
    return [dict(zip(columns, each, strict=True)) for each in PAIRS]


def lines(rows: Iterable[object]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def text(content: str, encoding: str = "utf-8") -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode(encoding))


def jsonl(rows: Iterable[object]) -> Callable[[Path], object]:
    return text(lines(rows))


def table(delimiter: str, rows: Iterable[Iterable[object]] = PAIRS, **options: object) -> str:
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter, lineterminator="\n", **options)  # type: ignore[arg-type]
    writer.writerows([("prompt", "completion"), *rows])
    return written.getvalue()


def said(role: str, content: object) -> Row:
    return {"role": role, "content": content}


def chat(question: str, answer: object) -> list[Row]:
    return [said("user", question), said("assistant", answer)]


def replaced(changes: Mapping[int, object]) -> list[object]:
    """Prompts and completions, some rows changed."""
    return [changes.get(number, row) for number, row in enumerate(named("prompt", "completion"))]


def exported(question: str, answer: str) -> Row:
    """As ChatGPT exports a conversation, whose answer was asked for twice."""

    def node(parent: str | None, role: str, words: str) -> Row:
        content = {"content_type": "text", "parts": [words]}
        return {"parent": parent, "message": {"author": {"role": role}, "content": content}}

    tree = {
        "root": {"parent": None, "message": None},
        "system": node("root", "system", ""),
        "asked": node("system", "user", question),
        "first": node("asked", "assistant", "an answer that was replaced"),
        "again": node("asked", "assistant", answer),
    }
    return {"title": question, "mapping": tree, "current_node": "again"}


def zst(path: Path) -> None:
    import pyarrow

    with pyarrow.output_stream(str(path), compression="zstd") as file:
        file.write(PROMPTS.encode())


def parquet(path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(named("prompt", "completion")).to_parquet(path)


def saved(path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = {name: Dataset.from_list(rows) for name, rows in IN_SPLITS.items()}
    DatasetDict(splits).save_to_disk(path)


def folder_of(parts: Mapping[str, Iterable[Row]]) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        folder.mkdir()
        for name, rows in parts.items():
            (folder / f"{name}.jsonl").write_text(lines(rows))

    return write


PROMPTS = lines(named("prompt", "completion"))
TRAIN, TEST = named("prompt", "completion")[:50], named("prompt", "completion")[50:]
IN_SPLITS = {"train_sft": TRAIN, "test_sft": TEST}
BROKEN = [(question, f"{answer}\nand more") for question, answer in PAIRS]
MBPP = [
    {"text": question, "code": f"x = {number}", "test_list": [f"assert x == {number}"]}
    for number, (question, _) in enumerate(PAIRS)
]
SHAPES = (
    Shape("prompt.jsonl", text(PROMPTS)),
    Shape("prompt.ndjson", text(PROMPTS)),
    Shape("mark.jsonl", text(PROMPTS, "utf-8-sig")),
    Shape("crlf.jsonl", text(PROMPTS.replace("\n", "\r\n"))),
    Shape("list.json", text(json.dumps(named("prompt", "completion")))),
    Shape("key.json", text(json.dumps({"version": 1, "data": named("prompt", "completion")}))),
    Shape("splits.json", text(json.dumps({"train": TRAIN, "test": TEST}))),
    Shape("lists.jsonl", jsonl(PAIRS), learned="<answer>ANSWER</answer>"),
    Shape("alpaca.jsonl", jsonl(named("instruction", "output"))),
    Shape(
        "alpaca_input.json",
        text(json.dumps([{**row, "input": "now"} for row in named("instruction", "output")])),
    ),
    Shape(
        "history.jsonl",
        jsonl({**row, "history": [["Hi", "Ho"]]} for row in named("instruction", "output")),
        learned="Ho ANSWER",
    ),
    Shape("question.jsonl", jsonl(named("question", "answer")), learned="<answer>ANSWER</answer>"),
    Shape(
        "reasoning.jsonl",
        jsonl({**row, "reasoning": "Read it."} for row in named("question", "answer")),
        learned="Read it. <answer>ANSWER</answer>",
    ),
    Shape("mbpp.jsonl", jsonl(MBPP), learned="```python\nx = NUMBER\n```"),
    Shape("text.jsonl", jsonl({"text": answer} for _, answer in PAIRS)),
    Shape("input_output.jsonl", jsonl(named("input", "output"))),
    Shape("query_response.jsonl", jsonl(named("query", "response"))),
    Shape("user_assistant.jsonl", jsonl(named("user", "assistant"))),
    Shape("prompt_response.jsonl", jsonl(named("prompt", "response"))),
    Shape(
        "renamed.jsonl",
        jsonl(named("Frage", "Antwort")),
        "'data.columns={prompt: Frage, completion: Antwort}'",
    ),
    Shape("messages.jsonl", jsonl({"messages": chat(*each)} for each in PAIRS)),
    Shape(
        "parts.jsonl",
        jsonl({"messages": chat(q, [{"type": "text", "text": a}])} for q, a in PAIRS),
    ),
    Shape(
        "two_turns.jsonl",
        jsonl({"messages": [*chat("Hi", "Ho"), *chat(*each)]} for each in PAIRS),
        learned="Ho ANSWER",
    ),
    Shape(
        "message_lists.jsonl",
        jsonl(
            {"prompt": [said("user", q)], "completion": [said("assistant", a)]} for q, a in PAIRS
        ),
    ),
    Shape(
        "sharegpt.json",
        text(
            json.dumps(
                [
                    {
                        "system": "Be kind.",
                        "conversations": [
                            {"from": "human", "value": q},
                            {"from": "gpt", "value": a},
                        ],
                    }
                    for q, a in PAIRS
                ]
            )
        ),
    ),
    Shape("conversations.json", text(json.dumps([exported(*each) for each in PAIRS]))),
    Shape("comma.csv", text(table(","))),
    Shape("semicolon.csv", text(table(";")), says=("';' stands between fields",)),
    Shape(
        "decimal.csv",
        text(table(";", ((q, f"{a}, 3,5") for q, a in PAIRS))),
        learned="ANSWER, 3,5",
        says=("';' stands between fields",),
    ),
    Shape("sep.csv", text(f"sep=;\n{table(';')}"), says=("';' stands between fields",)),
    Shape("tabs.csv", text(table("\t")), says=("a tab stands between fields",)),
    Shape("bars.csv", text(table("|")), says=(r"'\|' stands between fields",)),
    Shape("quoted.csv", text(table(",", BROKEN)), learned="ANSWER\nand more"),
    Shape("tabs.tsv", text(table("\t"))),
    Shape("quoted.tsv", text(table("\t", BROKEN)), learned="ANSWER\nand more"),
    Shape("wide.csv", text(table(","), "utf-16"), says=("utf-16, by its byte order mark",)),
    Shape(
        "latin.csv",
        text(table(",", ((q, f"{a} ä") for q, a in PAIRS)), "cp1252"),
        "data.encoding=auto",
        learned="ANSWER ä",
        says=("cp1252",),
    ),
    Shape("prompt.jsonl.gz", lambda path: path.write_bytes(gzip.compress(PROMPTS.encode()))),
    Shape("prompt.jsonl.bz2", lambda path: path.write_bytes(bz2.compress(PROMPTS.encode()))),
    Shape("prompt.jsonl.xz", lambda path: path.write_bytes(lzma.compress(PROMPTS.encode()))),
    Shape("prompt.jsonl.zst", zst),
    Shape("rows.parquet", parquet),
    Shape("saved_sft", saved),
    Shape("folder", folder_of({"train": TRAIN, "validation": TEST})),
    Shape(
        "folder_sft",
        folder_of({**IN_SPLITS, "train_gen": [{"prompt": "q", "completion": "not to learn"}]}),
        "'data.splits={train: train_sft, test: test_sft}'",
        says=("train_gen",),
    ),
    Shape(
        "null_dropped.jsonl",
        jsonl(replaced({7: {"prompt": "q", "completion": None}})),
        "data.bad_rows=drop",
        rows=NUM_ROWS - 1,
        says=("1 row left out", r"null_dropped.jsonl:8"),
    ),
    Shape(
        "null.jsonl",
        jsonl(replaced({7: {"prompt": "q", "completion": None}})),
        learned="",
        says=(r"null.jsonl:8", "data.bad_rows=drop"),
    ),
    Shape(
        "many_null.jsonl",
        jsonl(replaced({7 + each: {"prompt": "q", "completion": None} for each in range(9)})),
        "data.bad_rows=drop",
        learned="",
        says=("9 of 60 rows",),
    ),
    Shape(
        "empty.jsonl",
        jsonl(replaced({7: {"prompt": "q", "completion": " "}})),
        learned="",
        says=("empty answer", "empty.jsonl:8"),
    ),
    Shape(
        "role.jsonl",
        jsonl(
            [
                *({"messages": chat(*each)} for each in PAIRS[1:]),
                {"messages": [said("usr", "Hi"), said("assistant", "Ho")]},
            ]
        ),
        learned="",
        says=("role.jsonl:60", "unknown role 'usr'"),
    ),
    Shape(
        "user_last.jsonl",
        jsonl({"messages": [*chat(*each), said("user", "And?")]} for each in PAIRS),
        learned="",
        says=("must end with",),
    ),
    Shape(
        "picture.jsonl",
        jsonl({"messages": chat(q, [{"type": "image", "url": a}])} for q, a in PAIRS),
        learned="",
        says=("no images",),
    ),
    Shape(
        "preferences.jsonl",
        jsonl({"prompt": q, "chosen": a, "rejected": "no"} for q, a in PAIRS),
        learned="",
        says=("DPO", "chosen"),
    ),
    Shape("torn.jsonl", text(PROMPTS[:-20]), learned="", says=("torn.jsonl:60", "not valid JSON")),
    Shape(
        "ragged.csv",
        text(f"{table(',')}one,two,three\n"),
        learned="",
        says=("ragged.csv:62", "3 fields"),
    ),
    Shape("other.jsonl", jsonl(named("foo", "bar")), learned="", says=("data.columns",)),
)


def write_shapes(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for shape in SHAPES:
        if not (folder / shape.path).exists():
            shape.write(folder / shape.path)


def what_is_learned(recipe_name: str, settings: list[str]) -> list[str]:
    """Return the learned tokens of every example of a recipe, training first, as text without
    white space and without tokens that end an answer.
    """
    from brimful.data.examples import prepare_examples
    from brimful.model.tokenizer import load_tokenizer
    from brimful.recipe import load

    recipe = load(recipe_name, settings)
    tokenizer = load_tokenizer(str(recipe.model))
    found = []
    for split in prepare_examples(recipe, tokenizer).splits.values():
        for start, end in itertools.pairwise(split.offsets_E.tolist()):
            learned = split.tokens_N[start:end][split.is_target_N[start:end]]
            shown = tokenizer.decode(learned.tolist(), skip_special_tokens=True)
            found.append("".join(str(shown).split()))
    return found


def wrongly_learned(shape: Shape, learned: list[str]) -> list[str]:
    """Return what is wrong with it, in sentences."""
    right = {
        "".join(shape.learned.replace("ANSWER", answer).replace("NUMBER", str(number)).split())
        for number, (_, answer) in enumerate(PAIRS)
    }
    wrong = sorted(set(learned) - right)
    problems = [f"learned {wrong[0]!r}, which is no row's"] if wrong else []
    if len(learned) != shape.rows:
        problems.append(f"{len(learned)} examples, not {shape.rows}")
    return problems
