"""Rows of three kinds to tune models on, from data sets in a folder: their lengths differ in other
ways, which decides what a CPU's heap loses.

code: instructions and programs, 30 to over 500 tokens; short messages with their labels.
maths: questions and worked answers, 80 to 350 tokens; sentences with a sentiment.
translation: sentences and their translation, 25 to 100 tokens; sentences in two languages.
"""

import gzip
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROWS = 400
Row = Mapping[str, str]
Rows = tuple[list[Row], list[Row]]
"""Pairs of prompt and completion, and texts with labels."""


def _code(folder: Path) -> Rows:
    with gzip.open(folder / "gpteacher_codegen/codegen-instruct.json.gz") as file:
        pairs = [
            _pair(f"{row['instruction']}\n\n{row['input']}".strip(), row["response"])
            for row in json.load(file)
        ]
    lines = (folder / "sms_spam/SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    return pairs, [
        _labelled(text, label) for label, text in (line.split("\t", 1) for line in lines)
    ]


def _maths(folder: Path) -> Rows:
    with gzip.open(folder / "gsm8k/train.jsonl.gz", "rt", encoding="utf-8") as file:
        pairs = [_pair(row["question"], row["answer"]) for row in map(json.loads, file)]
    lines = (folder / "sst2/train.tsv").read_text(encoding="utf-8").splitlines()
    return pairs, [
        _labelled(text, f"class {label}")
        for text, label in (line.rsplit("\t", 1) for line in lines)
        if label in ("0", "1")
    ]


def _translation(folder: Path) -> Rows:
    with zipfile.ZipFile(folder / "tatoeba_fra_eng/fra-eng.zip") as packed:
        lines = packed.read("fra.txt").decode("utf-8").splitlines()
    both = [line.split("\t")[:2] for line in lines]
    pairs = [_pair(f"Translate into French: {english}", french) for english, french in both]
    texts = [
        _labelled(text, label)
        for row in both[::2]
        for text, label in zip(row, ("English", "French"), strict=True)
    ]
    return pairs, texts


KINDS: Mapping[str, Callable[[Path], Rows]] = {
    "code": _code,
    "maths": _maths,
    "translation": _translation,
}


def write_rows(kind: str, data: Path, folder: Path) -> tuple[Path, Path]:
    """Write some rows of a kind, drawn at random with a fixed seed; return the files of pairs and
    of texts.
    """
    paths = folder / f"{kind}-pairs.jsonl", folder / f"{kind}-texts.jsonl"
    for path, rows in zip(paths, KINDS[kind](data), strict=True):
        drawn = random.Random(0).sample(rows, ROWS)
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in drawn)
        path.write_text(text, encoding="utf-8")
    return paths


def _pair(prompt: str, completion: str) -> Row:
    return {"prompt": prompt, "completion": completion}


def _labelled(text: str, label: str) -> Row:
    return {"text": text, "label": label}
