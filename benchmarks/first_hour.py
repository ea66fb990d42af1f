"""A new user's first hour: data of many shapes, published models, the commands of README, at 80
columns. Prints what failed.

    python benchmarks/first_hour.py [--model FOLDER ...] [--classifier FOLDER ...] [--only WORD]

Every step is one command in a pseudo-terminal of 80 columns, in an empty folder with an own cache.
It must end with the exit code a user expects, say what it should say, and print no line that the
terminal would break. `--model` and `--classifier` name local models of the kinds that are tuned to
answer and to sort; without them small random ones are made. Commands of README are run with `--help`
in place of what trains for hours, so that their options are known to exist.
"""

import argparse
import csv
import fcntl
import gzip
import json
import os
import pty
import random
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from record import write_record

COLUMNS = 80
LIMIT_S = 600
README = Path(__file__).parents[1] / "README.md"
BRIMFUL = (sys.executable, "-m", "brimful")
WORDS = [
    "the",
    "cat",
    "sees",
    "a",
    "tree",
    "and",
    "the",
    "dog",
    "likes",
    "rain",
    "while",
    "we",
    "walk",
    "home",
    "slowly",
]
NETWORK = re.compile(r"google/gemma|FOLDER|meta-llama|vinai/")
"""Parts of README's commands that name what a reader puts in, or a model to download."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


@dataclass(frozen=True)
class Step:
    """One command of the tour.

    Attributes:
        arguments: After `brimful`.
        exit_codes: What a user expects.
        says: Regular expressions of which each must occur in what is printed.
    """

    name: str
    arguments: tuple[str, ...]
    exit_codes: tuple[int, ...] = (0,)
    says: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What came of a step: how long it took, and what a user would complain about."""

    step: Step
    seconds: float
    first_output_s: float
    problems: list[str] = field(default_factory=list)


def text_of(length: int, seed: int = 0) -> str:
    drawn = random.Random(seed)
    lines = (" ".join(drawn.choices(WORDS, k=12)) + "." for _ in range(length // 60))
    return "\n".join(f"{line}\n" if number % 5 == 0 else line for number, line in enumerate(lines))


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_table(path: Path, rows: list[tuple[str, ...]], *, delimiter: str = ",") -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


def questions() -> list[tuple[str, str]]:
    drawn = random.Random(1)
    pairs = ((drawn.choice(WORDS), drawn.randint(2, 4)) for _ in range(60))
    return [
        (f"Say {word} {times} times, number {number}.", " ".join([word] * times))
        for number, (word, times) in enumerate(pairs)
    ]


def make_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Write documents in several shapes; yield what each is and its path."""
    (folder / "input.txt").write_text(text_of(60_000))
    yield "one text", "input.txt"
    with gzip.open(folder / "input.txt.gz", "wt") as file:
        file.write(text_of(60_000))
    yield "one compressed text", "input.txt.gz"
    mixed = folder / "mixed"
    mixed.mkdir()
    for number in range(15):
        (mixed / f"{number}.txt").write_text(text_of(3_000, number))
        (mixed / f"{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n" * 40)
        (mixed / f"{number}.md").write_text(f"# Page {number}\n\n{text_of(2_000, number)}")
    (mixed / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    (mixed / "empty.txt").write_text("")
    yield "a folder of texts, programs and a picture", "mixed"
    write_rows(folder / "rows.jsonl", [{"text": text_of(600, number)} for number in range(80)])
    yield "JSON lines with texts", "rows.jsonl"
    rows = [("text", "year"), *((text_of(600, number), "2020") for number in range(80))]
    write_table(folder / "rows.csv", rows)
    yield "a CSV table with texts", "rows.csv"
    from datasets import Dataset

    stored = Dataset.from_dict({"text": [text_of(600, number) for number in range(80)]})
    stored.to_parquet(folder / "rows.parquet")
    yield "a Parquet table with texts", "rows.parquet"
    stored.save_to_disk(folder / "saved")
    yield "a saved data set", "saved"


def make_examples(folder: Path) -> Iterator[tuple[str, str]]:
    """Write examples to tune with in several shapes; yield what each is and its path."""
    pairs = questions()
    write_rows(folder / "alpaca.jsonl", [{"instruction": q, "output": a} for q, a in pairs])
    yield "instructions with answers", "alpaca.jsonl"
    write_table(folder / "pairs.csv", [("prompt", "completion"), *pairs])
    yield "a CSV table of prompts and completions", "pairs.csv"
    chats = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in pairs
    ]
    write_rows(folder / "chats.jsonl", [dict(chat) for chat in chats])
    yield "conversations", "chats.jsonl"
    parts = [
        {
            "messages": [
                {"role": "developer", "content": "Answer briefly."},
                {"role": "user", "content": [{"type": "text", "text": q}]},
                {"role": "assistant", "content": a},
            ]
        }
        for q, a in pairs
    ]
    write_rows(folder / "parts.jsonl", [dict(row) for row in parts])
    yield "conversations with a developer and content in parts", "parts.jsonl"


def preferences(folder: Path) -> str:
    rows = [{"prompt": q, "chosen": a, "rejected": "no"} for q, a in questions()]
    write_rows(folder / "preferences.jsonl", [dict(row) for row in rows])
    return "preferences.jsonl"


def make_labels(folder: Path) -> None:
    """Write labelled texts with a header and without one, and texts to sort."""
    drawn = random.Random(2)
    rows = []
    for number in range(200):
        label, words = ("spam", "win cash prize now free") if number % 3 == 0 else ("ham", "")
        text = " ".join(drawn.choices(words.split() or WORDS, k=8)) + f" {number}"
        rows.append((label, text))
    write_table(folder / "no-header.tsv", rows, delimiter="\t")
    write_table(folder / "mails.csv", [("label", "text"), *rows])
    write_table(folder / "named.csv", [("verdict", "body"), *rows])
    write_table(
        folder / "new.csv", [("id", "text"), *((str(n), t) for n, (_, t) in enumerate(rows[:9]))]
    )


def make_causal(folder: Path) -> str:
    """A small random model of the Llama family with a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from brimful.data.tokenizer import train_tokenizer

    tokenizer = train_tokenizer("bpe", 300, 2, [text_of(20_000)])
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "causal")
    tokenizer.save_pretrained(folder / "causal")
    return str(folder / "causal")


def make_encoder(folder: Path) -> str:
    """A small random encoder of the BERT family."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *sorted(set(WORDS)), "win", "cash", "prize"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    BertForMaskedLM(config).save_pretrained(folder / "encoder")
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / "encoder")
    return str(folder / "encoder")


def tour(folder: Path, models: list[str], classifiers: list[str]) -> Iterator[Step]:
    """The steps in their order, writing what they need into `folder`."""
    few = ("training.steps=4", "training.tokens=null", "batch.sequences=4")
    small = ("tokenizer.vocabulary=280", "sequence_length=64", "optimizer.warmup=1", *few)
    for number, (name, path) in enumerate(make_texts(folder)):
        arguments = ("train", "tiny-gpt", f"data.path={path}", *small, f"run.name=text-{number}")
        yield Step(name, arguments, says=("best model",))
    yield Step(
        "what of a folder was left out",
        ("train", "tiny-gpt", "data.path=mixed", *small, "run.name=mixed-again"),
        says=(r"15 .*\.py|\.py.* 15", "picture|image", "empty"),
    )
    shapes = list(make_examples(folder))
    tuning = (*few, "optimizer.warmup=1", "sequence_length=256", "evaluation.max_examples=4")
    plain = ("sample.tokens=4", "evaluation.tasks=[]")
    for model in models:
        named = Path(model).name
        for number, (name, path) in enumerate(shapes):
            run = f"run.name={named}-{number}"
            data = (f"model={model}", f"data.path={path}")
            arguments = ("train", "code-lora", *data, *tuning, *plain, run)
            yield Step(f"{named}: {name}", arguments, says=("best model",))
        yield Step(f"{named}: exported", ("export", f"{named}-0"), says=("adapters",))
        yield Step(
            f"{named}: writes", ("generate", f"{named}-0", "--prompt", "Say rain.", "--tokens", "4")
        )
        yield Step(
            f"{named}: preferences are refused by name",
            ("train", "code-lora", f"model={model}", f"data.path={preferences(folder)}"),
            exit_codes=(2,),
            says=("DPO|preference",),
        )
    make_labels(folder)
    for model in classifiers:
        named = Path(model).name
        sorting = ("moderation-offline", f"model={model}", "labels.pretrain=null", *few)
        rest = ("optimizer.warmup=1", "sequence_length=48")
        for name, path, columns in (
            ("no header", "no-header.tsv", ()),
            ("a header", "mails.csv", ()),
            (
                "columns named otherwise",
                "named.csv",
                ("data.text_column=body", "data.label_column=verdict"),
            ),
        ):
            run = f"{named}-{Path(path).stem}"
            data = (f"data.path={path}", *columns, f"run.name={run}")
            yield Step(f"{named}: {name}", ("train", *sorting, *rest, *data), says=("best model",))
            yield Step(
                f"{named}: sorts after {name}", ("predict", run, "new.csv"), says=("spam|ham",)
            )
    yield from readme_steps()


def readme_steps() -> Iterator[Step]:
    """The commands of README: plans as they stand, what trains with its options only."""
    for block in re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            command = line.partition("  #")[0].partition(" > ")[0].strip()
            if not command.startswith("brimful ") or "|" in command:
                continue
            words = shlex.split(command)[1:]
            if words[0] == "plan" and "--verify" not in words and not NETWORK.search(command):
                yield Step(f"README: {command}", tuple(words), exit_codes=(0, 1))
            elif words[0] in ("doctor", "recipes", "devices", "models", "--version"):
                yield Step(f"README: {command}", tuple(words))
            else:
                yield Step(f"README: {command}", (*words, "--help"))


def run_step(step: Step, folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Run a command in a pseudo-terminal of 80 columns and look at what a user sees."""
    shown, code, first_s, all_s = in_terminal([*BRIMFUL, *step.arguments], folder, environment)
    outcome = Outcome(step, all_s, first_s)
    if code not in step.exit_codes:
        outcome.problems.append(f"exit code {code}, not {step.exit_codes}: {shown[-600:]}")
    outcome.problems += [
        f"nothing like {what!r}" for what in step.says if not re.search(what, shown)
    ]
    if "Traceback" in shown:
        outcome.problems.append(f"a traceback: {shown[-600:]}")
    wide = [line for line in shown.splitlines() if len(line.rstrip()) > COLUMNS]
    if wide:
        outcome.problems.append(f"{len(wide)} lines over {COLUMNS} columns, first: {wide[0]!r}")
    return outcome


def in_terminal(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> tuple[str, int, float, float]:
    """Return what a command shows, its exit code, and the seconds to its first output and end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=dict(environment), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    pieces, first_s = [], float("nan")
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        first_s = time.perf_counter() - started if not pieces else first_s
        pieces.append(piece)
    os.close(ours)
    code = process.wait(LIMIT_S)
    text = ESCAPES.sub("", b"".join(pieces).decode(errors="replace")).replace("\r\n", "\n")
    # What a carriage return wrote over was shown for a moment only.
    shown = "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))
    return shown, code, first_s, time.perf_counter() - started


def environment_in(folder: Path) -> dict[str, str]:
    own = {name: str(folder / name) for name in ("cache", "hub", "runs")}
    return {
        **os.environ,
        "BRIMFUL_CACHE": own["cache"],
        "BRIMFUL_RUNS": own["runs"],
        "HF_HUB_OFFLINE": "1",
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", default=[], help="a causal model's folder")
    parser.add_argument("--classifier", action="append", default=[], help="an encoder's folder")
    parser.add_argument("--only", default="", help="steps with this word in their name")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records/")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = chosen.model or [make_causal(folder)]
        classifiers = chosen.classifier or [make_encoder(folder)]
        outcomes = list(walk(folder, models, classifiers, lambda step: chosen.only in step.name))
    failed = [outcome for outcome in outcomes if outcome.problems]
    for outcome in failed:
        print(f"\nFAILED {outcome.step.name}\n  brimful {shlex.join(outcome.step.arguments)}")
        print("\n".join(f"  - {problem}" for problem in outcome.problems))
    print(f"\n{len(outcomes)} steps, failed: {len(failed) or 'nothing'}")
    if chosen.record:
        write_record("first_hour", summary(outcomes))
    raise SystemExit(bool(failed))


def walk(
    folder: Path, models: list[str], classifiers: list[str], wanted: Callable[[Step], bool]
) -> Iterator[Outcome]:
    environment = environment_in(folder)
    for step in tour(folder, models, classifiers):
        if wanted(step):
            outcome = run_step(step, folder, environment)
            mark = "FAILED" if outcome.problems else "ok"
            print(f"{outcome.seconds:6.1f} s  {mark:6} {step.name}", flush=True)
            yield outcome


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    return {
        "steps": [
            {
                "name": outcome.step.name,
                "seconds": round(outcome.seconds, 1),
                "first_output_s": round(outcome.first_output_s, 2),
                "problems": outcome.problems,
            }
            for outcome in outcomes
        ],
        "failed": sum(bool(outcome.problems) for outcome in outcomes),
    }


if __name__ == "__main__":
    main()
