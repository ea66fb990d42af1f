"""Damage files of run folders at random, ask everything that reads them, and look for answers that
changed without a word.

    python benchmarks/corruption.py [--trials 400] [--seed 0] [--minutes 10] [--folder FOLDER] [--only WORD]

Finished and unfinished runs of every kind are made once. A trial copies one of them, damages one
file of its folder (every file is as likely as any other), and asks the verbs that answer from a
run folder. The answers are compared with those of the undamaged run; what differs between two
undamaged copies is not compared. What a refusal advises is done, and everything is asked again.
Verbs run in this process. A folder in memory (such as /dev/shm) makes trials faster.
"""

import argparse
import contextlib
import functools
import gc
import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
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
from brimful.runs.side_by_side import read_side_by_side
from brimful.training import loop
from record import write_record

sys.path.append(str(Path(__file__).parents[1] / "tests" / "fixtures"))
import make_old_runs

KINDS = ("documents", "masked", "examples", "labels")
PAGE_BYTES = 4096
OUTCOMES = ("same", "told", "repaired", "refused", "silent", "traceback")
"""From the best to the worst. `same`: every answer is that of the undamaged run. `told`: an answer
differs or is missing, and what is printed says that something is damaged. `repaired`: a verb ended
with one message and exit code 2, and after what the message advises the answers are those of the
undamaged run; `refused`: they are not. `silent`: another answer without a word."""
BAD = OUTCOMES[3:]
_TELLS = re.compile(
    r"damaged|lost|missing|cannot be read|cannot be used|is not in the run folder|quarantine"
    r"|is not as it was|cut off|differs from|holds \w+, not|something else|written again|no longer|brought back"
)

OF_THE_FILES = ("last_active", "size_bytes", "checkpoint_bytes", "freeable_bytes")
"""What `brimful runs` says of the files as they are now: no answer about the run."""

SHOWN = (
    "recipe",
    "plan",
    "environment",
    "data",
    "scores",
    "records",
    "samples",
    "monitored",
    "tasks",
    "mirror",
)
"""What the page of a run is drawn from."""

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
    """Return what a report says of a run, and all that its page is drawn from, without drawing."""
    try:
        run = read_run(run_folder)
        problems = "\n".join([*run.problems.values(), *run.tasks.problems, run.model_problem])
        lines = prediction_lines(run_folder)
    except BrimfulError as error:
        return Reply(error.exit_code, {}, str(error))
    except Exception:
        return Reply(None, {}, traceback.format_exc())
    answers = {line.partition("  ")[0]: line for line in lines}
    answers |= {name: repr(getattr(run, name)) for name in SHOWN}
    answers["side by side"] = repr(read_side_by_side(run_folder))
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
        return self.root / self.name / self.name

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def is_finished(self) -> bool:
        return not self.name.endswith("unfinished")

    def make(self) -> None:
        """Train it, and evaluate it if it is a finished one."""
        recipe = self.root / "recipes" / f"{self.kind}.yaml"
        recipe.write_text(make_old_runs.RECIPES[self.kind], encoding="utf-8")
        if not self.is_finished:
            with killed_in_update(5):
                self.train()
            return
        for reply in (self.train(), ask("evaluate", f"{self.name}/{self.name}")):
            if reply.exit_code:
                raise SystemExit(reply.printed)

    def train(self, name: str = "", *options: str) -> Reply:
        """Run the recipe's command, which finishes an unfinished run and repairs a finished one;
        or train it anew under another name.
        """
        own = (f"run.name={name or self.name}", f"run.folder={self.name}", *options)
        every = () if self.is_finished else ("checkpoint.every=2",)
        reply = ask("train", f"recipes/{self.kind}.yaml", *own, *every)
        return Reply(reply.exit_code, self.weights(name), reply.printed)

    def weights(self, name: str = "") -> Answers:
        """Return the hashes of the exported weights, of this run or of one beside it."""
        models = sorted((self.folder.parent / (name or self.name)).glob("model/*.safetensors"))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in models}

    def look(self) -> dict[str, Reply]:
        """Ask the verbs that only read, and those that use a finished model."""
        folder = f"{self.name}/{self.name}"
        replies = {"runs": self._listed(), "report": ask_report(self.folder)}
        if self.is_finished:
            replies["evaluate"] = ask("evaluate", folder, "--json")
            replies["use"] = self._use(folder)
        return replies

    def _listed(self) -> Reply:
        """Ask for the list of runs, of which the answers about this one count."""
        reply = ask("runs", self.name, "--json")
        start = next(
            (
                name.removesuffix("name")
                for name, value in reply.answers.items()
                if name.endswith("/name") and value == self.name
            ),
            "/absent/",
        )
        own = {
            name.removeprefix(start): re.sub(r"[^,]* ago", "", str(value))
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
        return self.look() | ({} if self.is_finished else {"train": self.train()})

    def follow(self, advice: str) -> Mapping[str, Reply]:
        """Do what a message advises; return the replies that must be those of the undamaged run."""
        if re.search(r"the command that trained it|the same [`\w ]*command", advice):
            trained = self.train()
            return self.users() if self.is_finished else {"train": trained}
        if "brimful evaluate" in advice:
            return self.users()
        if named := re.search(r"run\.name=([\w.-]+)", advice):
            return {"train": self.train(named[1])}
        return {"train": self.train("", "--fresh")} if "--fresh" in advice else {}

    def users(self) -> dict[str, Reply]:
        """Ask the verbs that use a finished model."""
        return {verb: each for verb, each in self.look().items() if verb in ("evaluate", "use")}


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
        if run.is_finished:
            first["train"] = second["train"] = Reply(0, run.weights(), "")
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
        new_lines = set(reply.printed.splitlines()) - set(undamaged.printed.splitlines())
        return "told" if any(map(_TELLS.search, new_lines)) else "silent"

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
    whole, aside = run.folder.parent, run.root / "aside"
    shutil.copytree(whole, aside)
    try:
        yield
    finally:
        shutil.rmtree(whole)
        aside.rename(whole)


def attempt(run: Run, baseline: Baseline, seed: str) -> Trial:
    """Damage a copy of a run, ask everything, and judge; after a refusal, do what it advises."""
    with kept(run):
        file, name = damage(run.folder, random.Random(seed))
        replies = run.answers()
        outcomes = {verb: baseline.judge(verb, reply) for verb, reply in replies.items()}
        worst = max(outcomes.values(), key=OUTCOMES.index)
        where = tuple(verb for verb, outcome in outcomes.items() if outcome == worst)
        detail = baseline.difference(where[0], replies[where[0]]) if worst != "same" else ""
        if worst == "refused":
            again = run.follow(replies[where[0]].printed)
            outcomes = {verb: baseline.judge(verb, reply) for verb, reply in again.items()}
            if again and all(outcome == "same" for outcome in outcomes.values()):
                worst = "repaired"
            else:
                detail += f" | after the advice: {outcomes}"
                detail += "".join(each.printed.strip()[-300:] for each in again.values())
    return Trial(run.name, re.sub(r"\d{6,}.*?(?=/|$)", "*", file), name, worst, where, detail)


class _Killed(BaseException):
    """Ends a training as a kill would: nothing is written any more."""


@contextlib.contextmanager
def killed_in_update(number: int) -> Iterator[None]:
    """End a training inside in its update of this number."""
    update, num_updates = loop.guarded_update, itertools.count(1)

    def guarded_update(*arguments: Any, **named: Any) -> Any:
        if next(num_updates) == number:
            raise _Killed
        return update(*arguments, **named)

    loop.guarded_update = guarded_update
    try:
        with contextlib.suppress(_Killed):
            yield
    finally:
        loop.guarded_update = update


def prepare(root: Path, only: str = "") -> list[Run]:
    """Go to a folder, make runs of every kind in it if it is new, each alone in a folder of its
    own, and return them.
    """
    is_new = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    os.chdir(root)
    os.environ["BRIMFUL_CACHE"] = str(root / "cache")
    if is_new:
        make_old_runs.write_data(root / "data")
        make_old_runs.write_base(root / "base")
        make_old_runs.write_encoder(root / "encoder")
        (root / "recipes").mkdir()
        (root / "new.csv").write_text("text\nwin cash now\nred cat sees dog\n", encoding="utf-8")
    names = (f"{kind}-{state}" for kind in KINDS for state in ("finished", "unfinished"))
    runs = [Run(root, name) for name in names if only in name]
    for run in runs:
        if not run.folder.exists():
            run.make()
    return runs


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
        "by_run": counts(trials, "run"),
        "by_file": counts(trials, "file"),
        "by_damage": counts(trials, "damage"),
        "bad": [asdict(trial) for trial in trials if trial.outcome in BAD],
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
        gc.collect()
        gc.freeze()  # what was imported is not looked through again in every trial
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
