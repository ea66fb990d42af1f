"""Damage files of run folders at random, ask everything that reads them, and look for answers that
changed without a word.

    python benchmarks/corruption.py [--trials 400] [--seed 0] [--minutes 10] [--folder FOLDER] [--only WORD]

Finished and unfinished runs of every kind are made once. A trial copies one of them, damages one
file of its folder (every file is as likely as any other), and asks the verbs that answer from a
run folder. The answers are compared with those of the undamaged run; what differs between two
undamaged copies is not compared. Verbs run in this process.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from brimful.base.errors import BrimfulError
from brimful.base.rundir import Lease
from brimful.cli import main as brimful
from brimful.hardware import calibrate
from brimful.report.text import prediction_lines
from brimful.runs import read_run
from record import write_record

MAKER = Path(__file__).parents[1] / "tests" / "fixtures" / "make_old_runs.py"
KINDS = ("documents", "masked", "examples", "labels")
PAGE_BYTES = 4096
OUTCOMES = ("same", "told", "repaired", "refused", "silent", "traceback")
"""From the best to the worst. `same`: every answer is that of the undamaged run. `told`: an answer
differs or is missing, and what is printed says that something is damaged. `refused`: a verb ended
with one message and exit code 2; `repaired`: and after the recipe's command all answers are those
of the undamaged run. `silent`: another answer without a word."""
_TELLS = re.compile(
    r"damaged|lost|missing|cannot be read|cannot be used|is not in the run folder|quarantine"
    r"|is not as it was|cut off|differs from|holds \w+, not|written again|no longer"
)

OF_THE_FILES = ("last_active", "size_bytes", "checkpoint_bytes", "freeable_bytes")
"""What `brimful runs` says of the files as they are now: no answer about the run."""

Answers = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What a verb gave: its exit code (None after a traceback), its answers by name, and all that
    it printed.
    """

    exit_code: int | None
    answers: Answers
    printed: str


@dataclass(frozen=True)
class Trial:
    """One damage and what came of it; `where` names the verbs with the worst outcome."""

    run: str
    file: str
    damage: str
    outcome: str
    where: tuple[str, ...]
    detail: str


def one_bit(content: bytes, drawn: random.Random) -> bytes:
    position = drawn.randrange(len(content))
    flipped = content[position] ^ (1 << drawn.randrange(8))
    return content[:position] + bytes([flipped]) + content[position + 1 :]


def one_byte(content: bytes, drawn: random.Random) -> bytes:
    position = drawn.randrange(len(content))
    other = (content[position] + drawn.randrange(1, 256)) % 256
    return content[:position] + bytes([other]) + content[position + 1 :]


def one_character(content: bytes, drawn: random.Random) -> bytes:
    """A digit becomes another digit, a letter another letter: the file is still what it was."""
    positions = [found.start() for found in re.finditer(rb"[0-9a-z]", content)]
    if not positions:
        return one_byte(content, drawn)
    position = drawn.choice(positions)
    old = content[position : position + 1]
    pool = b"0123456789" if old.isdigit() else b"abcdefghijklmnopqrstuvwxyz"
    new = drawn.choice([each for each in pool if each != old[0]])
    return content[:position] + bytes([new]) + content[position + 1 :]


def zeroed_page(content: bytes, drawn: random.Random) -> bytes:
    start = drawn.randrange(0, len(content), PAGE_BYTES)
    num_bytes = min(PAGE_BYTES, len(content) - start)
    return content[:start] + bytes(num_bytes) + content[start + num_bytes :]


def cut_off(content: bytes, drawn: random.Random) -> bytes:
    return content[: drawn.randrange(len(content))]


def emptied(_content: bytes, _drawn: random.Random) -> bytes:
    return b""


REWRITES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    one_bit,
    one_byte,
    one_character,
    zeroed_page,
    cut_off,
    emptied,
)
DAMAGES = (*(rewrite.__name__ for rewrite in REWRITES), "deleted", "swapped")


def files_of(run_folder: Path) -> list[Path]:
    """Return every file that a damage may hit, in a fixed order; a lease comes and goes."""
    return sorted(
        path
        for path in run_folder.rglob("*")
        if path.is_file() and path.name != Lease.FILE_NAME and path.stat().st_size
    )


def damage(run_folder: Path, drawn: random.Random) -> tuple[str, str]:
    """Damage one file of a run folder; return its path in it and what was done."""
    files = files_of(run_folder)
    path, name = drawn.choice(files), drawn.choice(DAMAGES)
    if name == "deleted":
        path.unlink()
    elif name == "swapped":
        other = drawn.choice([each for each in files if each != path])
        mine, its = path.read_bytes(), other.read_bytes()
        path.write_bytes(its)
        other.write_bytes(mine)
        name += f" with {other.relative_to(run_folder).as_posix()}"
    else:
        rewrite = REWRITES[DAMAGES.index(name)]
        path.write_bytes(rewrite(path.read_bytes(), drawn))
    return path.relative_to(run_folder).as_posix(), name


def ask(*arguments: str) -> Reply:
    """Run a verb in this process."""
    printed, told = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["brimful", *arguments]
    code: int | None = 0
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            brimful()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except Exception:
        code = None
        told.write(traceback.format_exc())
    finally:
        sys.argv = before
    text = printed.getvalue()
    answers = leaves(json.loads(text)) if "--json" in arguments and code in (0, 1) else {"": text}
    return Reply(code, answers, f"{text}\n{told.getvalue()}")


def ask_report(run_folder: Path) -> Reply:
    """Return what a report says of a run, without drawing its page."""
    try:
        problems = "\n".join(read_run(run_folder).problems.values())
        lines = prediction_lines(run_folder)
    except BrimfulError as error:
        return Reply(error.exit_code, {}, str(error))
    except Exception:
        return Reply(None, {}, traceback.format_exc())
    answers = {line.partition("  ")[0]: line for line in lines}
    return Reply(0, answers, "\n".join([*lines, problems]))


def leaves(value: Any, name: str = "") -> Answers:
    """Return the plain values in a JSON value, by their path."""
    if not isinstance(value, dict | list):
        return {name: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        key: leaf for part, each in pairs for key, leaf in leaves(each, f"{name}/{part}").items()
    }


@dataclass(frozen=True)
class Run:
    """A run to be damaged: its name, and the folder in which its recipe, data and other runs lie."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.root / "runs" / self.name

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def train(self) -> Reply:
        """Run the recipe's command, which finishes an unfinished run and repairs a finished one."""
        options = (f"run.name={self.name}", "run.folder=runs", "checkpoint.every=2")
        own = options if self.name.endswith("unfinished") else options[:2]
        reply = ask("train", f"recipes/{self.kind}.yaml", *own)
        models = sorted(self.folder.glob("model/*.safetensors"))
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in models}
        return Reply(reply.exit_code, digests, reply.printed)

    def look(self) -> dict[str, Reply]:
        """Ask the verbs that only read, and those that use a finished model."""
        folder = f"runs/{self.name}"
        replies = {
            "runs": self._listed(),
            "report": ask_report(self.folder),
        }
        if not self.name.endswith("unfinished"):
            replies["evaluate"] = ask("evaluate", folder, "--json")
            replies["use"] = self._use(folder)
        return replies

    def _listed(self) -> Reply:
        """Ask for the list of runs, of which the answers about this one count."""
        reply = ask("runs", "runs", "--json")
        start = next(
            (
                name.removesuffix("name")
                for name, value in reply.answers.items()
                if name.endswith("/name") and value == self.name
            ),
            "/absent/",
        )
        own = {
            name.removeprefix(start): value
            for name, value in reply.answers.items()
            if name.startswith(start) and name.removeprefix(start) not in OF_THE_FILES
        }
        return Reply(reply.exit_code, own, reply.printed)

    def _use(self, folder: str) -> Reply:
        if self.kind == "labels":
            labelled = self.root / "labelled.csv"
            labelled.unlink(missing_ok=True)
            reply = ask("predict", folder, "new.csv", "--output", str(labelled))
            text = labelled.read_text(encoding="utf-8") if labelled.exists() else ""
            return Reply(reply.exit_code, {"": text}, reply.printed)
        return ask("generate", folder, "--prompt", "red <mask>", "--tokens", "3", "--temperature=0")

    def answers(self) -> dict[str, Reply]:
        """Ask everything; an unfinished run is trained to its end, too."""
        replies = self.look()
        if self.name.endswith("unfinished"):
            replies["train"] = self.train()
        return replies


@dataclass(frozen=True)
class Baseline:
    """The answers of an undamaged run, without those that differ from one copy to the next."""

    replies: dict[str, Reply]

    @classmethod
    def of(cls, run: Run) -> "Baseline":
        with kept(run):
            first = run.answers()
        with kept(run):
            second = run.answers()
        stable = {
            verb: Reply(
                reply.exit_code,
                {
                    name: value
                    for name, value in reply.answers.items()
                    if second[verb].answers.get(name) == value
                },
                reply.printed,
            )
            for verb, reply in first.items()
        }
        return cls(stable)

    def judge(self, verb: str, reply: Reply) -> str:
        """Return the outcome of one verb."""
        undamaged = self.replies[verb]
        if reply.exit_code is None:
            return "traceback"
        if reply.exit_code != undamaged.exit_code:
            return "refused" if reply.exit_code == 2 else "told"
        if self.is_same(verb, reply):
            return "same"
        new_words = set(_TELLS.findall(reply.printed)) - set(_TELLS.findall(undamaged.printed))
        return "told" if new_words else "silent"

    def is_same(self, verb: str, reply: Reply) -> bool:
        return all(
            reply.answers.get(name, self) == value
            for name, value in self.replies[verb].answers.items()
        )

    def difference(self, verb: str, reply: Reply) -> str:
        """Return the first answers that differ, or the end of what was printed."""
        if reply.exit_code != 0:
            return reply.printed.strip()[-600:]
        pairs = (
            f"{name}: {value!r} -> {reply.answers.get(name)!r}"
            for name, value in self.replies[verb].answers.items()
            if reply.answers.get(name, self) != value
        )
        return "; ".join(list(pairs)[:3])[:600]


@contextlib.contextmanager
def kept(run: Run) -> Iterator[None]:
    """What happens to a run's folder inside is undone."""
    aside = run.root / "aside"
    shutil.copytree(run.folder, aside)
    try:
        yield
    finally:
        shutil.rmtree(run.folder)
        aside.rename(run.folder)


def attempt(run: Run, baseline: Baseline, seed: str) -> Trial:
    """Damage a copy of a run, ask everything, and judge; after a refusal, run the recipe's command
    and ask again.
    """
    with kept(run):
        file, name = damage(run.folder, random.Random(seed))
        replies = run.answers()
        outcomes = {verb: baseline.judge(verb, reply) for verb, reply in replies.items()}
        worst = max(outcomes.values(), key=OUTCOMES.index)
        where = tuple(verb for verb, outcome in outcomes.items() if outcome == worst)
        detail = baseline.difference(where[0], replies[where[0]]) if worst != "same" else ""
        if worst == "refused" and run.train().exit_code == 0:
            again = run.look()
            if all(
                baseline.is_same(verb, reply) for verb, reply in again.items() if verb != "runs"
            ):
                worst = "repaired"
    return Trial(run.name, re.sub(r"\d{6,}.*?(?=/|$)", "*", file), name, worst, where, detail)


def prepare(root: Path, only: str = "") -> list[Run]:
    """Make runs of every kind in a folder that is not there yet, go there, and return them."""
    if not root.exists():
        command = [sys.executable, str(MAKER), str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    os.chdir(root)
    os.environ["BRIMFUL_CACHE"] = str(root / "cache")
    (root / "new.csv").write_text("text\nwin cash now\nred cat sees dog\n", encoding="utf-8")
    names = sorted(path.name for path in (root / "runs").iterdir())
    return [Run(root, name) for name in names if only in name]


def counts(trials: Sequence[Trial], field: str) -> dict[str, dict[str, int]]:
    """Return how often each outcome came, by the file or the damage."""
    found: dict[str, Counter[str]] = {}
    for trial in trials:
        found.setdefault(getattr(trial, field).partition(" ")[0], Counter())[trial.outcome] += 1
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def record_of(trials: Sequence[Trial]) -> Mapping[str, Any]:
    """Return what the record keeps: counts, and every trial that ended badly."""
    return {
        "n": len(trials),
        "outcomes": dict(Counter(trial.outcome for trial in trials)),
        "by_file": counts(trials, "file"),
        "by_damage": counts(trials, "damage"),
        "bad": [asdict(trial) for trial in trials if trial.outcome in OUTCOMES[-2:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10, help="no trial starts after these")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--folder", type=Path, help="keep the runs there, or take them from there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    calibrate.measure_matrix_rates = functools.cache(
        lambda device, dtypes, real=calibrate.measure_matrix_rates: real(device, dtypes)
    )
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as temporary:
        runs = prepare((options.folder or Path(temporary) / "made").resolve(), options.only)
        baseline = functools.cache(Baseline.of)
        end_s = time.monotonic() + 60 * options.minutes
        for number in range(options.trials):
            if time.monotonic() > end_s:
                break
            run = random.Random(f"{options.seed}-{number}").choice(runs)
            trials.append(attempt(run, baseline(run), f"{options.seed}-{number}"))
            print(number, *asdict(trials[-1]).values(), flush=True)
        os.chdir("/")
    record = record_of(trials)
    write_record("corruption", {"seed": options.seed, **record})
    print(json.dumps(record, indent=1))
    sys.exit(bool(record["bad"]))


if __name__ == "__main__":
    main()
