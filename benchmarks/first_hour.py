"""A new user's first hour: data of many shapes, three models, every command of README and of
docs/commands.md, on a terminal of 80 columns. Prints what failed.

    python benchmarks/first_hour.py [--only WORD ...] [--keep FOLDER] [--record]

Every step is a command as a user types it, in an empty folder with an own cache; what would train
for hours is made small. It must end with the exit code and say the words that a user expects, without
a traceback, a line that the terminal would break or a word that is cut. Two models are published ones
(`brimful models get`; taken from the cache of this machine where they are), one is trained here.
"""

import argparse
import contextlib
import csv
import fcntl
import gzip
import itertools
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from brimful.base.env import cache_folder
from data_shapes import SHAPES, Shape, what_is_learned, write_shapes, wrongly_learned
from record import RECORDS, write_record

COLUMNS = 80
DOCUMENTS = ("README.md", "docs/commands.md")
WORDS = ("the", "cat", "sees", "a", "tree", "and", "dog", "likes", "rain", "while", "we", "walk")
SPAM = ("win", "cash", "prize", "now", "free", "call")
CONTROLS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\r\n])")
FEW = (
    "training.epochs=null training.tokens=null training.steps=4 optimizer.warmup=1 sample.tokens=8"
)
TEXT = f"tokenizer.vocabulary=280 sequence_length=256 batch.sequences=4 {FEW}"
TUNING = f"{FEW} sample.prompt=Say batch.sequences=4 sequence_length=256 evaluation.max_examples=4"
LABELS = f"model=minilm-l6 labels.pretrain=as_written {FEW} batch.sequences=4 sequence_length=48"
OWN_MODEL = "model=runs/texts-0/model"
SMALL: Mapping[str, str] = {
    "quickstart": "training.steps=40 evaluation.max_sequences=8",
    "tiny-gpt": f"{TEXT} data.config_name=null model.layers=2 model.width=64 model.mlp_width=128",
    "lora": TUNING,
    "code-smollm2": f"{TUNING} data.path=pairs.jsonl evaluation.tasks=[]",
    "code-smollm2-study": f"{TUNING} data.path=pairs.jsonl evaluation.tasks=[]"
    " 'study.variants={lora-8: [adapter.rank=8], lora-16: []}'",
    "code-lora": f"{TUNING} model=smollm2-135m-instruct data.path=pairs.jsonl evaluation.tasks=[]",
    "code-qlora": f"{TUNING} adapter.targets=all-linear evaluation.tasks=[]",
    "code-offline": f"{TUNING} {OWN_MODEL} data.path=pairs.jsonl evaluation.tasks=[]"
    " 'study.variants={lora: [], full: [adapter=null]}'",
    "unit-rft-offline": f"{TUNING} {OWN_MODEL} rft.questions.max_questions=4 rft.rounds=1 rft.samples_per_prompt=2 rft.keep_per_prompt=2",
    "moderation-offline": LABELS,
    "okadfa-ablation": f"{TEXT} study.seeds=[1] 'study.variants={{softmax: [model.attention=softmax], kernel: []}}'",
}
"""What makes a recipe of the documents small: settings that are added to its command."""
EXIT_CODES = {
    "brimful plan tiny-gpt model=meta-llama/Llama-3.1-8B tokenizer=null adapter.rank=16"
    " batch.sequences=16 --on T4": 1
}
"""A plan that does not fit says so by its exit code."""
PLACES = {"model=FOLDER": OWN_MODEL, "data.path=FOLDER": "data.path=mixed", "/mnt/drive": "drive"}
"""What the documents leave to its reader."""


@dataclass(frozen=True)
class Step:
    """A command of the tour, what makes it small, and what a user expects of it.

    Attributes:
        says: Regular expressions of which each must occur in what is printed.
        shape: Whose data it trains on.
    """

    command: str
    small: str = ""
    exit_code: int = 0
    says: tuple[str, ...] = ()
    shape: Shape | None = None


@dataclass
class Outcome:
    """What came of a step: how long it took, what a user would complain about, and of a shape of
    data the first few things that are learned and what is said about them.
    """

    command: str
    seconds: float
    first_output_s: float
    longest_silence_s: float
    problems: list[str] = field(default_factory=list)
    learned: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count)) + "."


def text(seed: int) -> str:
    return "\n".join(words(12, 100 * seed + line) for line in range(40)) + "\n"


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_table(path: Path, rows: Iterable[Iterable[object]], delimiter: str = ",") -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


def write_texts(folder: Path) -> list[str]:
    """Write documents in seven shapes, and return their paths."""
    from datasets import Dataset

    documents = [{"text": text(number), "year": 2020} for number in range(60)]
    whole = "\n".join(str(row["text"]) for row in documents)
    (folder / "corpus.txt").write_text(whole)
    (folder / "corpus.txt.gz").write_bytes(gzip.compress(whole.encode()))
    mixed = folder / "mixed"
    mixed.mkdir(exist_ok=True)
    for number in range(15):
        (mixed / f"{number}.txt").write_text(text(number))
        (mixed / f"{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n" * 40)
        (mixed / f"{number}.md").write_text(f"# Page {number}\n\n{text(number)}")
    (mixed / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    (mixed / "empty.py").touch()
    write_rows(folder / "rows.jsonl", documents)
    write_table(folder / "rows.csv", [documents[0], *(row.values() for row in documents)])
    stored = Dataset.from_list(documents)
    stored.to_parquet(folder / "rows.parquet")
    stored.save_to_disk(folder / "saved")
    return [
        "corpus.txt",
        "corpus.txt.gz",
        "mixed",
        "rows.jsonl",
        "rows.csv",
        "rows.parquet",
        "saved",
    ]


def write_examples(folder: Path) -> list[str]:
    """Write questions with answers in five shapes, and preferences; return the paths of the
    former.
    """
    pairs = [(f"Say these words: {words(3, n)}", words(3, n)) for n in range(60)]
    write_rows(folder / "pairs.jsonl", ({"prompt": q, "completion": a} for q, a in pairs))
    write_rows(folder / "alpaca.jsonl", ({"instruction": q, "output": a} for q, a in pairs))
    write_table(folder / "pairs.csv", [("prompt", "completion"), *pairs])
    chats = [[message("user", q), message("assistant", a)] for q, a in pairs]
    write_rows(folder / "chats.jsonl", ({"messages": chat} for chat in chats))
    briefly = message("developer", "Answer briefly.")
    parts = (
        [briefly, message("user", [{"type": "text", "text": q}]), a]
        for (q, _), (_, a) in zip(pairs, chats, strict=True)
    )
    write_rows(folder / "parts.jsonl", ({"messages": chat} for chat in parts))
    preferences = ({"prompt": q, "chosen": a, "rejected": "no"} for q, a in pairs)
    write_rows(folder / "preferences.jsonl", preferences)
    return ["pairs.jsonl", "alpaca.jsonl", "pairs.csv", "chats.jsonl", "parts.jsonl"]


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def write_labels(folder: Path) -> None:
    """Write labelled texts without a header, with one and with one of other names, and texts to
    sort.
    """
    drawn = random.Random(2)
    rows = []
    for number in range(200):
        label, of = ("spam", SPAM) if number % 3 == 0 else ("ham", WORDS)
        rows.append((label, f"{' '.join(drawn.choices(of, k=8))} {number}"))
    write_table(folder / "SMSSpamCollection", rows, "\t")
    write_table(folder / "labels.csv", [("label", "text"), *rows])
    write_table(folder / "named.csv", [("verdict", "body"), *rows])
    write_table(folder / "mails.csv", [("id", "text"), *enumerate(said for _, said in rows[:9])])


def tour(folder: Path) -> Iterator[Step]:
    """The steps in their order; what they read is written into `folder`."""
    for number, path in enumerate(write_texts(folder)):
        command = f"brimful train tiny-gpt data.path={path} run.name=texts-{number}"
        left_out = ("15 .py", "images: 1", "empty: 1") if path == "mixed" else ()
        small = SMALL["tiny-gpt"] + " --explain" * bool(left_out)
        yield Step(command, small, says=("best model", *left_out))
    examples = write_examples(folder)
    for path in examples:
        command = f"brimful train lora model=runs/texts-0/model data.path={path} run.name={path}"
        yield Step(command, TUNING, says=("best model", "before tuning"))
    yield Step("brimful export chats.jsonl", says=("adapters",))
    yield Step("brimful generate parts.jsonl --prompt 'Say rain.' --tokens 8")
    refused = "brimful train lora data.path=preferences.jsonl"
    yield Step(refused, exit_code=2, says=("DPO", "chosen"))
    write_labels(folder)
    for path, columns in {
        "SMSSpamCollection": "",
        "labels.csv": " data.file_type=auto data.text_column=text data.label_column=label",
        "named.csv": " data.file_type=auto data.text_column=body data.label_column=verdict",
    }.items():
        yield Step(
            f"brimful train moderation-offline data.path={path}{columns} run.name={path}",
            LABELS,
            says=("best model",),
        )
        yield Step(f"brimful predict {path} mails.csv", says=("spam|ham",))
    yield from shape_steps(folder)
    yield from documented_steps()


def shape_steps(folder: Path) -> Iterator[Step]:
    """A model that was trained here, tuned on data of each shape."""
    write_shapes(folder / "shapes")
    for shape in SHAPES:
        settings = f"{OWN_MODEL} data.path=shapes/{shape.path} {shape.settings}".rstrip()
        command = f"brimful train lora {settings} run.name=shape-{shape.path}"
        says = (*shape.says, "best model") if shape.learned else shape.says
        yield Step(command, TUNING, 2 * (not shape.learned), says, shape)


def look_at(shape: Shape, step: Step, shown: str, folder: Path, outcome: Outcome) -> None:
    """Compare what is learned of a shape with what should be, and keep what is said."""
    said = shown.partition("best model")[0].splitlines()
    outcome.said = [
        line for line in said if shape.path in line or "note" in line or "error" in line
    ]
    if not shape.learned:
        return
    settings = shlex.split(step.command)[3:] + shlex.split(step.small)
    with contextlib.chdir(folder):
        learned = what_is_learned("lora", settings)
    outcome.learned = learned[:3]
    outcome.problems += wrongly_learned(shape, learned)


def documented_steps() -> Iterator[Step]:
    """The commands of the documents, those that train made small."""
    root = Path(__file__).parents[1]
    text = "".join((root / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            command = line.partition("  #")[0].strip()
            for place, here in PLACES.items():
                command = command.replace(place, here)
            if match := re.search(r"brimful (\S+) ?(\S*)", command):
                verb, recipe = match.groups()
                small = SMALL.get(recipe, "") if verb in ("run", "train") else ""
                # A model that has learned nothing gives no right answer to learn from.
                is_rft = "unit-rft" in recipe
                says = (r"nothing to\s+train on",) if is_rft else ()
                yield Step(command, small, EXIT_CODES.get(command, 2 * is_rft), says)


def take(step: Step, folder: Path, environment: Mapping[str, str]) -> tuple[Outcome, str]:
    """Run a command on a terminal of 80 columns, and look at what a user sees."""
    command = f"{step.command} {step.small}"
    printed, exit_code, times_s = on_terminal(command, folder, environment)
    shown = left_on_screen(printed)
    silences = [after - before for before, after in itertools.pairwise(times_s)]
    outcome = Outcome(
        step.command, round(times_s[-1], 1), round(times_s[1], 2), round(max(silences), 1)
    )
    if exit_code != step.exit_code:
        outcome.problems.append(f"exit code {exit_code}, not {step.exit_code}")
    if "Traceback" in shown:
        outcome.problems.append("a traceback")
    outcome.problems += [
        f"nothing like {word!r}"
        for word in step.says
        if not re.search(word, f"{shown}\n{' '.join(shown.split())}")
    ]
    if step.shape is not None:
        look_at(step.shape, step, shown, folder, outcome)
    # Texts and rows of data have any length; a path is never broken, so that it can be copied.
    if not re.search("brimful (generate|predict)", step.command):
        rows = [row for row in shown.splitlines() if len(row) > COLUMNS and " " in row.strip()]
        outcome.problems += [f"wider than the terminal: {row!r}" for row in rows[:1]]
        outcome.problems += [f"cut: {row!r}" for row in shown.splitlines() if row.endswith("…")]
    return outcome, shown


def on_terminal(
    command: str, folder: Path, environment: Mapping[str, str]
) -> tuple[str, int, list[float]]:
    """Return what a command prints on a terminal of 80 columns, its exit code, and the seconds since
    its start at which it printed and ended, 0 first.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    started = time.perf_counter()
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    printed, times_s = b"", [0.0]
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        printed += piece
        times_s.append(time.perf_counter() - started)
    os.close(ours)
    exit_code = process.wait()
    times_s.append(time.perf_counter() - started)
    return printed.decode(errors="replace"), exit_code, times_s


def left_on_screen(printed: str) -> str:
    """Return the rows that stay: the cursor is moved up and rows are erased as a terminal does."""
    rows, row, column = [""], 0, 0
    for part in CONTROLS.split(printed):
        if part == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif part.endswith("K") and part.startswith("\x1b["):
            rows[row] = "" if part[2:-1] == "2" else rows[row][:column]
        elif not part.startswith("\x1b"):
            before, behind = rows[row].ljust(column)[:column], rows[row][column + len(part) :]
            rows[row], column = before + part + behind, column + len(part)
    return "\n".join(each.rstrip() for each in rows)


def environment_in(folder: Path) -> dict[str, str]:
    """A user's environment with own caches; models that were downloaded before are there."""
    (folder / "drive").mkdir(exist_ok=True)
    models = folder / "cache" / "models"
    models.parent.mkdir(exist_ok=True)
    if (cache_folder() / "models").exists() and not models.exists():
        models.symlink_to((cache_folder() / "models").resolve())
    paths = {
        "BRIMFUL_CACHE": "cache",
        "HF_HOME": "hub",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "BRIMFUL_RUNS": "runs",
    }
    own = {name: str(folder / path) for name, path in paths.items()}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **own, "PATH": programs, "HF_HUB_OFFLINE": "1", "TERM": "xterm-256color"}


def record(outcomes: list[Outcome]) -> None:
    """Write the record; of steps that were not walked now it keeps what it has."""
    path = RECORDS / "first_hour.json"
    stored = json.loads(path.read_text())["steps"] if path.exists() else []
    steps = {each["command"]: each for each in [*stored, *map(asdict, outcomes)]}
    failed = sum(bool(each["problems"]) for each in steps.values())
    write_record("first_hour", {"steps": list(steps.values()), "failed": failed})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="steps with such a word in them")
    parser.add_argument("--keep", type=Path, help="a new folder that keeps data, runs and output")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records/")
    chosen = parser.parse_args()
    folder = (chosen.keep or Path(tempfile.mkdtemp())).resolve()
    folder.mkdir(exist_ok=True)
    environment, outcomes = environment_in(folder), []
    for step in tour(folder):
        if not any(word in step.command for word in chosen.only):
            continue
        outcome, shown = take(step, folder, environment)
        with open(folder / "shown.txt", "a", encoding="utf-8") as file:
            file.write(f"$ {step.command} {step.small}\n{shown}\n")
        mark = "FAILED" if outcome.problems else "ok"
        print(f"{outcome.seconds:6.1f} s  {mark:6} {step.command}", flush=True)
        outcomes.append(outcome)
        if chosen.record:
            record(outcomes)
    failed = [outcome for outcome in outcomes if outcome.problems]
    for outcome in failed:
        print("\n  - ".join([f"\nFAILED {outcome.command}", *outcome.problems]))
    print(f"\n{len(outcomes)} steps, failed: {len(failed) or 'nothing'}; shown in {folder}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
