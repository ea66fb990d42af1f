"""Malformed recipes, overrides, data files, configs of models and files of other tools, drawn by a
grammar and given to the command line: each must be accepted, or refused with a message and exit code 1 or 2. There may be
no traceback, and never 10 s of the processor without a sign of life.

python benchmarks/malformed.py             # 1,400 of them; writes records/malformed.json
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


JOBS: dict[str, Any] = {
    "axolotl": {
        "base_model": "HuggingFaceTB/SmolLM2-135M",
        "adapter": "lora",
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_target_modules": ["q_proj"],
        "sequence_len": 512,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": "adamw_torch",
        "learning_rate": 2e-4,
        "num_epochs": 1,
        "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
    },
    "llama_factory": {
        "model_name_or_path": "HuggingFaceTB/SmolLM2-135M",
        "stage": "sft",
        "finetuning_type": "lora",
        "dataset": "alpaca_en_demo",
        "cutoff_len": 512,
        "max_steps": 100,
        "deepspeed": "ds.json",
    },
    "torchtune": {
        "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
        "tokenizer": {"max_seq_len": 512},
        "batch_size": 2,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5},
        "dtype": "bf16",
    },
}
SCRIPT = """from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
size = {size}
lora = LoraConfig(r={rank}, target_modules={modules})
args = SFTConfig(per_device_train_batch_size=size, max_length={length}, output_dir="x")
SFTTrainer(model={model}, args=args, peft_config=lora, train_dataset="trl-lib/Capybara").train()
"""
VALUES_OF_SCRIPTS = st.one_of(
    ODD_VALUES.map(repr),
    st.sampled_from(["size", "2 ** 64", "[x for x in y]", "open('/x').read()"]),
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[str, str]:
    """A file of another tool with one to three odd values, as YAML, a script or a notebook, and
    text put in somewhere.
    """
    kind = draw(st.sampled_from([*JOBS, "script", "notebook"]))
    if kind in JOBS:
        values = copy.deepcopy(JOBS[kind])
        for key in draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3)):
            values[key] = draw(ODD_VALUES)
        name, text = f"{kind}.yaml", format_yaml(values).encode("utf-8", "replace").decode()
    else:
        given = {"size": "2", "rank": "8", "modules": "['q_proj']", "length": "512"}
        given |= {"model": "'HuggingFaceTB/SmolLM2-135M'"}
        given |= draw(
            st.dictionaries(st.sampled_from(sorted(given)), VALUES_OF_SCRIPTS, max_size=3)
        )
        name, text = "train.py", SCRIPT.format(**given)
        if kind == "notebook":
            cells = [
                {"cell_type": "code", "source": draw(st.sampled_from([text, [text], None, 1]))}
            ]
            name, text = "train.ipynb", json.dumps({"cells": cells, "nbformat": 4})
    place = draw(st.integers(0, len(text)))
    text = text[:place] + draw(st.one_of(st.just(""), st.just(""), SYNTAX)) + text[place:]
    return name, text.encode("utf-8", "replace").decode()


def _job(folder: Path, file: tuple[str, str]) -> list[str]:
    (folder / file[0]).write_text(file[1], encoding="utf-8")
    return ["plan", str(folder / file[0]), "--on", "L4"]


def _looked_at(folder: Path, file: tuple[str, bytes]) -> list[str]:
    (folder / file[0]).write_bytes(file[1])
    return ["data", _tiny(folder), f"data.path={folder / file[0]}", *_tuning(_base())]


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
    "data": (data_files(PAIRS, TALKS), _looked_at),
    "job": (jobs(), _job),
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
    parser.add_argument("--inputs", type=int, default=1400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started_s = time.perf_counter()
    num_each = options.inputs // len(KINDS)
    counts = {kind: dict(outcomes(kind, num_each, options.seed)) for kind in KINDS}
    print(json.dumps(counts, indent=2))
    seconds = time.perf_counter() - started_s
    write_record("malformed", {"seed": options.seed, "outcomes": counts, "seconds": seconds})


if __name__ == "__main__":
    main()
