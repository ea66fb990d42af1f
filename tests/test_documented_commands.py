"""Every command that a document shows is one of brimful's, and runs as it is written; what would
take weights, a GPU, a network or hours is made small, or listed with the reason.
"""

import contextlib
import csv
import gzip
import io
import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Said
from fixture_types import MakeRecipe
from json_lines import write_rows

from brimful import cli
from brimful.base.errors import BrimfulError
from brimful.base.types import Json, JsonDict
from brimful.chains.devices import groups_of
from brimful.cli.inputs import look_at_data
from brimful.data.sources import is_local
from brimful.recipe import KINDS, load, shipped_names, shipped_text

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
NOT_RUN = {
    "studio": "a server that waits; driven in tests/faces/studio and tests/browser",
    "serve": "a server that waits; tests/chains/test_serving.py",
    "prove": "minutes of training; tests/prove",
    "atlas": "minutes of plans for every device; tests/faces/atlas",
    "calibrate --devices": "processes that measure each other; tests/hardware/test_links.py",
    "models get": "downloads 90 MB; tests/model/test_obtained.py",
    "models add": "needs the hub; tests/model/test_catalog.py follows it with a folder",
    "models convert": "needs the weights of a Llama; tests/model/okadfa/test_conversion.py",
    "sample": "draws from a model of 1.7B parameters; tests/chains/test_sampling.py",
    "evaluate code-lora humaneval": "needs HumanEval; tests/evaluation",
    "evaluate RUN humaneval": "needs HumanEval; tests/evaluation",
    "evaluate RUN unit-conversion gsm8k": "needs GSM8K; tests/evaluation",
    "--install-completion": "writes into the shell's own files",
    "export RUN --push": "needs an account of the hub; tests/chains/test_hub_push.py",
    "train lora data.path=pairs.jsonl --devices": "several processes; tests/chains/test_ranks.py",
    "train quickstart --devices": "several processes; tests/chains/test_ranks.py",
    "run quickstart run.loggers": "needs the package of W&B; tests/report/live",
    "run study.yaml --devices": "several processes; tests/chains/test_parallel_study.py",
    "evaluate NAME --devices": "several processes; tests/chains/test_ranks.py",
    "predict NAME texts.csv --devices": "several processes; tests/chains/test_ranks.py",
}
"""Commands by their beginning, and why they do not run here. Their words are looked at all the
same.
"""
EXIT_CODES = {
    "plan tiny-gpt model=meta-llama/Llama-3.1-8B": 1,
    "plan tiny-gpt --on T4 --budget 3h": 1,
    "plan llamafactory-cli train": 1,
    "diagnose": 1,
}
"""Commands by their beginning that do not end with 0: they answer that it does not fit, or that a
run of twelve steps has learned nothing.
"""
PLACES = {
    "run.mirror=/content/drive/MyDrive/brimful": "run.mirror=drive",
    "/content/drive/MyDrive/brimful": "runs",
    "/mnt/drive": "drive",
    "/mnt/shards": "documents",
    "FILE": "book.txt",
    "2000": "20",
}
"""What a document leaves to its reader, or to a larger model, and what stands for it here."""
DEAR_PLANS = ("--up-to", "--verify")
"""Options with which a plan is made of a small stand-in."""
LLAMA_FACTORY = """
MODEL=base
llamafactory-cli train --stage sft --model_name_or_path $MODEL --finetuning_type lora \\
  --cutoff_len 32 --per_device_train_batch_size 2 --bf16
"""
AXOLOTL = """
base_model: base
adapter: lora
lora_r: 4
lora_target_linear: true
datasets: [{path: org/pairs, type: alpaca}]
sequence_len: 32
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
optimizer: adamw_torch
learning_rate: 2.0e-4
bf16: auto
"""
KEPT = ("optimizer.", "run.")
"""Changes of a recipe with which its small stand-in is trained, too."""


@dataclass(frozen=True)
class Command:
    """A command of a document.

    Attributes:
        document: The name of its file.
        text: As written, comment cut off; a pipe before it and a file after it are left.
    """

    document: str
    text: str

    @property
    def words(self) -> list[str]:
        """What follows `brimful`."""
        own = re.search(r"(?:^|\| )brimful (.*?)(?: [<>] .*)?$", self.text)
        return shlex.split(own[1]) if own is not None else []

    @property
    def reason(self) -> str | None:
        """Why it does not run here."""
        text = " ".join(self.words)
        found = (reason for beginning, reason in NOT_RUN.items() if text.startswith(beginning))
        return next(found, None)


def _shown() -> list[Command]:
    """Every line of the documents' shell blocks with a command of brimful's."""
    found = []
    for path in DOCUMENTS:
        for language, block in FENCED.findall(path.read_text(encoding="utf-8")):
            lines = block.replace("\\\n", " ").splitlines()
            texts = [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]
            if language in {"sh", "bash", "console"}:
                found += [Command(path.name, text) for text in texts]
    return [command for command in dict.fromkeys(found) if command.words]


def _named() -> list[Command]:
    """The same, and every command that a line of text names; not those that sketch one by dots."""
    found = _shown()
    for path in DOCUMENTS:
        text = FENCED.sub("", path.read_text(encoding="utf-8"))
        named = re.findall(r"`(brimful [^`\s]+ [^`\n]+)`", text)
        found += [Command(path.name, command) for command in named]
    sketched = re.compile(r"\.\.|brimful [^a-z]")
    return [command for command in dict.fromkeys(found) if not sketched.search(command.text)]


def _parsed(words: list[str]) -> JsonDict:
    """Return what the command line understands of a command's words, by the names of parameters."""
    group: Any = typer.main.get_command(cli.app)
    context = group.make_context("brimful", [*words])
    while hasattr(group, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        name, group, rest = group.resolve_command(context, rest)
        context = group.make_context(name, rest, parent=context)
    parameters: JsonDict = context.params
    return parameters


@pytest.mark.parametrize(
    "command", _named(), ids=lambda command: f"{command.document}-{command.text}"
)
def test_a_command_that_a_document_names_has_these_options_keys_and_devices(
    command: Command,
) -> None:
    if command.words[0] in ("--help", "--version", "--install-completion", "--show-completion"):
        return
    parameters = _parsed(command.words)
    recipe = parameters.get("recipe")
    if recipe in shipped_names():
        load(recipe, parameters["overrides"] or [])
    devices = parameters.get("on", "here").replace("NAME", "T4")
    if devices not in ("", "here"):
        assert groups_of(load("quickstart"), devices)


def test_commands_stand_in_blocks_and_what_does_not_run_is_still_there() -> None:
    indented = re.compile(r"^(?: {4}|\t)(?:brimful|pip) ", re.MULTILINE)
    assert [path.name for path in DOCUMENTS if indented.search(path.read_text("utf-8"))] == []
    texts = [" ".join(command.words) for command in _shown()]
    stale = [each for each in [*NOT_RUN, *EXIT_CODES] if not any(t.startswith(each) for t in texts)]
    assert stale == []


# --- they run


def _write_what_documents_name(folder: Path) -> None:
    """Small files under the names that the documents give to data of their readers."""
    verses = "".join(f"# verse {n}\nthe cat sees a red tree {n}\n" * 8 for n in range(40))
    names = ("book.txt", "corpus.txt", "text.txt", "input.txt", "documents/a.txt", "shards/a.txt")
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(verses)
    examples = [{"prompt": f"Say red {n} times.", "completion": "red " * n} for n in range(1, 40)]
    chats = [
        {
            "messages": [
                {"role": "user", "content": each["prompt"]},
                {"role": "assistant", "content": each["completion"]},
            ]
        }
        for each in examples
    ]
    questions = [
        {"question": f"{n} and {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(40)
    ]
    marked = [
        ("free prize call now", "spam") if n % 3 == 0 else (f"the cat sees {n}", "ham")
        for n in range(90)
    ]
    posts = [{"body": text, "text": text, "label": label} for text, label in marked]
    for name, rows in (
        ("pairs.jsonl", examples),
        ("chats.jsonl", chats),
        ("texts.jsonl", [{"text": each["completion"]} for each in examples]),
        ("test.jsonl", questions),
        ("posts.jsonl", posts),
    ):
        write_rows(folder / name, rows)
    (folder / "train.jsonl.gz").write_bytes(gzip.compress((folder / "test.jsonl").read_bytes()))
    (folder / "comments.txt.gz").write_bytes(gzip.compress(b"free prize\nthe cat\n"))
    (folder / "drive").mkdir()
    job = {"model_name_or_path": "base", "max_length": 32, "per_device_train_batch_size": 2}
    (folder / "args.json").write_text(json.dumps(job | {"learning_rate": 1e-4}))
    (folder / "lora.yml").write_text(AXOLOTL)
    (folder / "mine.yaml").write_text(shipped_text("tiny-gpt"))
    (folder / "train.sh").write_text(LLAMA_FACTORY)
    tabs = "".join(f"{label}\t{text}\n" for text, label in marked)
    (folder / "SMSSpamCollection").write_text(tabs)
    turned = "".join(f"{text}\t{label}\n" for text, label in marked)
    for name in ("train", "dev", "test"):
        (folder / "labels").mkdir(exist_ok=True)
        (folder / "labels" / f"{name}.tsv").write_text(turned)
    for name, header in (
        ("mails.csv", ["body", "spam"]),
        ("messages.csv", ["text", "label"]),
        ("comments.csv", ["text", "label"]),
        *((f"data/{split}.csv", ["text", "label"]) for split in ("train", "valid", "test")),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *marked])


@pytest.fixture
def stand_ins(
    recipe_file: Path,
    labels_recipe_file: Path,
    tuning: MakeRecipe,
    tmp_path: Path,
) -> dict[str, Path]:
    """By the kind of run: a file with a recipe that takes a second."""
    del tuning  # it writes the file
    examples = tmp_path / "tuned.yaml"
    return {
        kind: {"examples": examples, "labels": labels_recipe_file}.get(kind, recipe_file)
        for kind in KINDS
    }


@dataclass
class Reader:
    """Someone who types the documents' commands, one after the other, in one folder.

    Attributes:
        folder: Where they work.
        stand_ins: A small recipe for each kind of run.
        model: A folder with a published model.
        done: What was trained, by verb, recipe and options.
    """

    folder: Path
    stand_ins: Mapping[str, Path]
    model: Path
    done: set[tuple[str, ...]] = field(default_factory=set)

    def take(self, command: Command) -> Said:
        """Run a command, made small."""
        words = [self._here(word) for word in command.words]
        parameters = _parsed(words)
        dear = parameters.get("on") == "here" or not {*DEAR_PLANS}.isdisjoint(words)
        is_own = parameters.get("recipe") in {*shipped_names(), "mine.yaml"}
        if words[0] in {"run", "train", "data"} or (words[0] == "plan" and dear and is_own):
            words = self._small(words, parameters)
            if (*words[:2], *words[3:]) in self.done:
                return Said(0, "", "")
            self.done.add((*words[:2], *words[3:]))
        for name in _runs_in(parameters):
            if not (self.folder / "runs" / name).exists():
                kind = {"RUN": "examples", "moderation": "labels"}.get(name, "documents")
                if name in shipped_names():
                    kind = load(name).kind.name
                assert _run(["train", str(self.stand_ins[kind]), f"run.name={name}"]).code == 0
        said = _run(words)
        _, redirected, place = command.text.partition(" > ")
        if redirected:
            (self.folder / place).write_text(said.out)
        return said

    def _here(self, word: str) -> str:
        for place, here in PLACES.items():
            word = word.replace(place, here) if place != "FILE" or word == place else word
        return word

    def _small(self, words: list[str], parameters: JsonDict) -> list[str]:
        """Return the command with a small recipe. Before, the data that the documented one names
        are looked at as its run would.
        """
        verb, name, *rest = words
        written = parameters["overrides"] or []
        kind = load(name).kind.name if name in shipped_names() else "documents"
        places = {"model=FOLDER": f"model={self.model}", "data.path=FOLDER": f"data.path={kind}"}
        recipe = load(name, [places.get(change, change) for change in written])
        if all(is_local(path) for path in recipe.data.paths) and recipe.study is None:
            look_at_data(recipe)
        free, number = recipe.run_name, 2
        while (self.folder / "runs" / free).exists():
            free, number = f"{recipe.run_name}-{number}", number + 1
        kept = [each for each in written if each.startswith(KEPT) and "run.name" not in each]
        options = [word for word in rest if word not in written]
        return [verb, str(self.stand_ins[kind]), f"run.name={free}", *kept, *options]


def _runs_in(parameters: Json) -> list[str]:
    """Return the names of the runs that a command asks for."""
    named = parameters.get("run") or parameters.get("runs") or []
    return [Path(name).name for name in ([named] if isinstance(named, str) else named)]


def _run(words: list[str]) -> Said:
    """Run a command in this process; who is asked answers nothing."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["brimful", *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"free prize call now\n")))
        patch.setattr("builtins.input", lambda *_: "")
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ending,
        ):
            cli.main()
    printed = []
    for stream in (out, err):
        stream.flush()
        printed.append(stream.buffer.getvalue().decode())
    return Said(int(ending.value.code or 0), *printed)


@pytest.mark.usefixtures("few_operators")
@pytest.mark.parametrize("are_first", [True, False], ids=["first of each", "others"])
@pytest.mark.long_but("bert-first of each")
def test_the_commands_of_the_documents_run(
    stand_ins: dict[str, Path],
    base_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    are_first: bool,
) -> None:
    """The first command of each document, and all others."""
    monkeypatch.chdir(tmp_path)
    _write_what_documents_name(tmp_path)
    reader = Reader(tmp_path, stand_ins, base_model)
    failed = []
    shown = {each.text: each for each in _shown() if each.reason is None}
    first = {each.document: each for each in reversed(shown.values())}
    chosen = [each for each in shown.values() if (first[each.document] is each) == are_first]
    for command in chosen:
        text = " ".join(command.words)
        expected = next((code for each, code in EXIT_CODES.items() if text.startswith(each)), 0)
        try:
            said = reader.take(command)
        except BrimfulError as error:
            said = Said(error.exit_code, "", str(error))
        if said.code != expected:
            failed.append((command.document, command.text, said.out[-600:], said.err[-600:]))
    assert failed == []
