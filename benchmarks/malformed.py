"""Malformed recipes, overrides, data files and configs of models, drawn by a grammar and given to
the command line: each must be accepted, or refused with a message and exit code 1 or 2. There may be
no traceback, and never 10 s of the processor without a sign of life.

python benchmarks/malformed.py             # 1,000 of them; writes records/malformed.json
"""

import argparse
import atexit
import contextlib
import copy
import functools
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from brimful.base.dotted import flatten, format_yaml
from brimful.base.text import printable
from brimful.cli import main as brimful
from record import write_record

ODD_VALUES: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 64),
    st.integers(-(10**30), 10**30),
    st.sampled_from([0, -1, 1, 2, 2**31, 2**63, 1e308, 1e-308, float("inf"), float("nan")]),
    st.text(max_size=12),
    st.sampled_from(["", "1:30", "010", "\x1b[31m", "../..", "~", "cuda:7", "a" * 300, "\ud800"]),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-3, 3), max_size=3),
)
VALID: dict[str, Any] = {
    "name": "tiny",
    "sequence_length": 32,
    "batch": {"sequences": 8},
    "training": {"steps": 12},
    "model": {"architecture": "llama", "layers": 2, "heads": 2, "width": 32},
    "tokenizer": {"kind": "bpe", "vocabulary": 300},
    "data": {"path": "corpus.txt", "document_start": "^# ", "validation": 0.2},
    "optimizer": {"learning_rate": 1e-2, "warmup": 3},
    "evaluation": {"every": 6},
    "sample": {"tokens": 8},
    "plan": {"device": "cpu", "precision": "fp32", "threads": 1, "compile": False},
}
KEYS = [
    *sorted(flatten(VALID)),
    "adapter.rank",
    "labels.kind",
    "study.variants",
    "rft.rounds",
    "x.y",
]
SYNTAX = st.text("{}[]:,-&*!|>'\"#%@ \n\t01aé\0\u2028", max_size=80)


@st.composite
def recipes(draw: st.DrawFn) -> str:
    """The tiny recipe with one to three keys changed or taken out, or text that may be no YAML."""
    if draw(st.integers(0, 5)) == 0:
        return draw(SYNTAX)
    values = copy.deepcopy(VALID)
    for key in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)):
        *parents, last = key.split(".")
        section = values
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                section = {}
        if draw(st.booleans()) or last not in section:
            section[last] = draw(ODD_VALUES)
        else:
            del section[last]
    text = format_yaml(values).encode("utf-8", "replace").decode()
    place = draw(st.integers(0, len(text)))
    return text[:place] + draw(st.one_of(st.just(""), SYNTAX)) + text[place:]


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """Changes of keys that there are and that there are not."""
    keys = st.one_of(st.sampled_from(KEYS), st.text("abc._=- ", max_size=12))
    value = st.one_of(ODD_VALUES.map(str), SYNTAX)
    pairs = draw(st.lists(st.tuples(keys, value), min_size=1, max_size=3))
    return [f"{key}={value}".replace("\0", "") for key, value in pairs]


def json_values() -> SearchStrategy[Any]:
    """Values of JSON, with what Python's writer lets through."""
    return st.recursive(
        st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=20)),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=8,
    )


COLUMNS = st.sampled_from(
    ["text", "label", "prompt", "completion", "messages", "question", "tools"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "x"]), "content": json_values()}
    ),
    max_size=3,
)
CELLS = st.text(max_size=20) | MESSAGES | json_values()
ROWS = st.one_of(
    st.lists(st.fixed_dictionaries({"text": CELLS}), max_size=6),
    st.lists(st.fixed_dictionaries({"messages": MESSAGES, "tools": CELLS}), max_size=6),
    st.lists(st.fixed_dictionaries({"prompt": CELLS, "completion": CELLS}), max_size=6),
    st.lists(st.dictionaries(COLUMNS, CELLS, max_size=4) | json_values(), max_size=6),
)


ODD_TEXT = st.text(max_size=60) | st.sampled_from(["", " ", "<|endoftext|>", "# ", "\0", "\n" * 40])
STORIES = [
    f"# story {number}\n" + f"red green {number} blue cat tree " * 12 for number in range(40)
]


def _turns(asked: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


TEXTS = ([{"text": story} for story in STORIES], st.fixed_dictionaries({"text": ODD_TEXT}))
PAIRS = (
    [{"prompt": f"Say {number}.", "completion": f"red {number}"} for number in range(40)],
    st.fixed_dictionaries({"prompt": ODD_TEXT, "completion": ODD_TEXT}),
)
TALKS = (
    [{"messages": _turns(f"Say {number}.", f"red {number}")} for number in range(40)],
    st.builds(lambda *words: {"messages": _turns(*words)}, ODD_TEXT, ODD_TEXT),
)
"""Sound rows, and odd ones of the same columns: files that are read to their end."""


@st.composite
def data_files(
    draw: st.DrawFn, *shapes: tuple[list[Any], SearchStrategy[Any]]
) -> tuple[str, bytes]:
    """A name and content: rows of odd values, odd texts among sound rows of some shapes, tables, or
    any bytes.
    """
    kind = draw(st.sampled_from(["rows", "among", "table", "bytes"]))
    if kind == "bytes":
        name = draw(
            st.sampled_from(["a.txt", "a.jsonl", "a.json", "a.csv", "a.parquet", "a.txt.gz"])
        )
        return name, draw(st.binary(max_size=200))
    if kind == "table":
        return draw(st.sampled_from(["a.csv", "a.tsv"])), draw(SYNTAX).encode()
    if kind == "among":
        sound, rows = draw(st.sampled_from(shapes))
        odd, start = draw(st.lists(rows, max_size=6)), draw(st.integers(0, len(sound)))
        lines = [json.dumps(row) for row in [*sound[:start], *odd, *sound[start:]]]
        return "a.jsonl", "\n".join(lines).encode()
    lines = [json.dumps(row) for row in draw(ROWS)]
    whole = draw(st.booleans())
    text = "[" + ",".join(lines) + "]" if whole else "\n".join(lines)
    place = draw(st.integers(0, len(text)))
    cut = draw(st.sampled_from([text, text[:place], text[:place] + "\\ud800" + text[place:]]))
    return "a.json" if whole else "a.jsonl", cut.encode()


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32,
    "vocab_size": 300,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


@st.composite
def configs(draw: st.DrawFn) -> str:
    """A config.json with one to three odd values, or text that may be no JSON."""
    changed = draw(
        st.dictionaries(st.sampled_from(sorted(CONFIG)), ODD_VALUES, min_size=1, max_size=3)
    )
    text = json.dumps(CONFIG | changed)
    return draw(st.sampled_from([text, text[: len(text) // 2], "[]", "", "null"]))


def _recipe(folder: Path, text: str) -> list[str]:
    (folder / "odd.yaml").write_text(text, encoding="utf-8")
    return ["plan", str(folder / "odd.yaml")]


def _overrides(folder: Path, changes: list[str]) -> list[str]:
    return ["plan", _tiny(folder), "--", *changes]


def _documents(folder: Path, file: tuple[str, bytes]) -> list[str]:
    (folder / file[0]).write_bytes(file[1])
    return ["train", _tiny(folder), f"data.path={folder / file[0]}", "training.steps=1"]


def _examples(folder: Path, file: tuple[str, bytes]) -> list[str]:
    return [*_documents(folder, file), *_tuning(_base()), "data.long_documents=truncate"]


@functools.cache
def _base() -> Path:
    """A model that one step on sound documents made, which examples tune."""
    folder = Path(tempfile.mkdtemp(prefix="malformed-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "corpus.txt").write_text("\n".join(STORIES), encoding="utf-8")
    words = ["train", _tiny(folder), "training.steps=1", "run.name=base", f"run.folder={folder}"]
    told = _outcome([*words, f"data.path={folder / 'corpus.txt'}"], "sound documents")
    if told != "accepted":
        raise RuntimeError(told)
    return folder / "base" / "model"


def _config(folder: Path, text: str) -> list[str]:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(text, encoding="utf-8")
    return ["plan", _tiny(folder), *_tuning(folder / "model")]


def _tiny(folder: Path) -> str:
    (folder / "tiny.yaml").write_text(format_yaml(VALID), encoding="utf-8")
    return str(folder / "tiny.yaml")


def _tuning(model: Path) -> list[str]:
    return ["method=sft", "tokenizer=null", f"model={model}", "adapter.rank=2"]


KINDS: dict[str, tuple[SearchStrategy[Any], Callable[[Path, Any], list[str]]]] = {
    "recipe": (recipes(), _recipe),
    "overrides": (overrides(), _overrides),
    "documents": (data_files(TEXTS), _documents),
    "examples": (data_files(PAIRS, TALKS), _examples),
    "config": (configs(), _config),
}
"""By name: what is drawn, and the command that is given it."""
SILENCE_S = 10.0


class Screen(StringIO):
    """A terminal's output, and the longest time without any."""

    def __init__(self) -> None:
        super().__init__()
        self.silent_s, self._last_s = 0.0, time.process_time()

    def write(self, text: str) -> int:
        self.note()
        return super().write(text)

    def isatty(self) -> bool:
        """A terminal is shown what is waited for."""
        return True

    def note(self) -> None:
        """Note that something was told, or that the command has ended."""
        now_s = time.process_time()
        self.silent_s, self._last_s = max(self.silent_s, now_s - self._last_s), now_s


def outcomes(kind: str, num_examples: int, number: int = 0) -> Counter[str]:
    """Draw inputs of a kind and give them to the command.

    Args:
        num_examples: How many are drawn.
        number: Seed.

    Returns:
        How many were accepted and refused, and by the last line of its traceback each that did
        something else, with the input.
    """
    strategy, words_of = KINDS[kind]
    counts: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(drawn: Any) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            counts[_outcome(words_of(Path(folder), drawn), drawn)] += 1

    each()
    return counts


def _outcome(words: list[str], drawn: Any) -> str:
    screen, code = Screen(), 0
    with (
        patch.object(sys, "argv", ["brimful", *words]),
        contextlib.redirect_stdout(screen),
        contextlib.redirect_stderr(screen),
    ):
        try:
            brimful()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__} in {place.name}: {error!s:.80} of {drawn!r:.300}"
            return printable(told)
    screen.note()
    told = screen.getvalue()
    if code not in (0, 1, 2) or "Traceback" in told or not told.strip():
        return printable(f"exit code {code} of {drawn!r:.300}: {told[-300:]}")
    if screen.silent_s > SILENCE_S:
        return printable(f"silent for {screen.silent_s:.0f} s: {drawn!r:.300}")
    return "accepted" if code == 0 else "refused"


def main() -> None:
    """Draw and read all kinds, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    inputs = parser.parse_args().inputs
    started_s = time.perf_counter()
    counts = {kind: dict(outcomes(kind, inputs // len(KINDS))) for kind in KINDS}
    print(json.dumps(counts, indent=2))
    write_record("malformed", {"outcomes": counts, "seconds": time.perf_counter() - started_s})


if __name__ == "__main__":
    main()
