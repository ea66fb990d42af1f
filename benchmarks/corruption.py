"""Damage files of run folders at random, ask everything that reads them, and look for answers that
changed without a word.

    python benchmarks/corruption.py [--trials 400] [--seed 0] [--minutes 10] [--folder FOLDER]
                                    [--only PATTERN] [--record NAME]

Finished and unfinished runs of every kind are made once, and mirrors of runs, a study, a chain of
rounds, a drawing of samples, bases of runs and a cache (damaged_runs.py). A trial copies one of them, damages one file of
its folder (every file is as likely as any other; its time of change stays, as after decay), and
asks the verbs that answer from it. The answers are compared with those of the undamaged run; what
differs between two undamaged copies is not compared. What a refusal advises is done, and everything
is asked again. Verbs run in this process. A folder in memory (such as /dev/shm) makes trials faster.

With a folder, results are kept there: a trial that has one is not made again unless it ended badly,
so that a campaign can be stopped and go on. The record has the newest result of each trial of the
folder, whatever its seed.
"""

import argparse
import functools
import gc
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from brimful.base.rundir import Lease
from damaged_runs import LOST, Reply, Run, kept, prepare, quickened, rates_of
from record import commit, write_record

PAGE_BYTES = 4096
RESULTS = "results.jsonl"
OUTCOMES = ("same", "told", "repaired", "refused", "silent", "traceback")
"""From the best to the worst. `same`: every answer is that of the undamaged run. `told`: an answer
differs or is missing, and what is printed says that something is damaged. `repaired`: a verb ended
with one message and exit code 2, and after what the message advises the answers are those of the
undamaged run; where one is not, and the advised command says that the best model is lost, that is
`told`, else `refused`. `silent`: another answer without a word."""
BAD = OUTCOMES[3:]
_TELLS = re.compile(
    r"damaged|lost|missing|cannot be read|cannot be used|is not in the run folder|quarantine"
    r"|is not as it was|cut off|differs from|holds \w+, not|something else|written again|no longer|brought back"
)


@dataclass(frozen=True)
class Trial:
    """One damage and what came of it.

    Attributes:
        seed, number: They decide what is damaged, and how.
        commit: Of the code that answered.
        where: The verbs with the worst outcome.
    """

    seed: int
    number: int
    commit: str
    run: str
    file: str
    damage: str
    outcome: str
    where: tuple[str, ...]
    detail: str

    @property
    def is_bad(self) -> bool:
        return self.outcome in BAD


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
    path, name = drawn.choice(files), drawn.choice(DAMAGES if files[1:] else DAMAGES[:-1])
    if name == "deleted":
        path.unlink()
    elif name == "swapped":
        other = drawn.choice([each for each in files if each != path])
        mine, its = path.read_bytes(), other.read_bytes()
        _rewrite(path, its)
        _rewrite(other, mine)
        name += f" with {other.relative_to(run_folder).as_posix()}"
    else:
        rewrite = REWRITES[DAMAGES.index(name)]
        _rewrite(path, rewrite(path.read_bytes(), drawn))
    return path.relative_to(run_folder).as_posix(), name


def _rewrite(path: Path, content: bytes) -> None:
    """Change a file as decay would: it does not look younger."""
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


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
        first, second = first | run.promised(), second | run.promised()
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
        if reply.exit_code == 2 != undamaged.exit_code:
            return "refused"
        if reply.exit_code == undamaged.exit_code and self.is_same(verb, reply):
            return "same"
        new_lines = _lines(reply) - _lines(undamaged)
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


def _lines(reply: Reply) -> set[str]:
    """Return what was printed, without its numbers, which differ from one time to the next."""
    return set(re.sub(r"\d+", "#", reply.printed).splitlines())


def attempt(
    run: Run, baseline: Baseline, drawn: random.Random, *, seed: int = 0, number: int = 0
) -> Trial:
    """Damage a copy of a run, ask everything, and judge; after a refusal, do what it advises."""
    with kept(run):
        file, name = damage(run.folder, drawn)
        replies = run.answers()
        outcomes = {verb: baseline.judge(verb, reply) for verb, reply in replies.items()}
        worst = max(outcomes.values(), key=OUTCOMES.index)
        where = tuple(verb for verb, outcome in outcomes.items() if outcome == worst)
        detail = baseline.difference(where[0], replies[where[0]]) if worst != "same" else ""
        if worst == "refused":
            again = run.follow(replies[where[0]].printed)
            outcomes = {verb: baseline.judge(verb, reply) for verb, reply in again.items()}
            right = {"told" if LOST.search(reply.printed) else "same" for reply in again.values()}
            if again and {*outcomes.values()} <= right | {"same"}:
                worst = "told" if "told" in outcomes.values() else "repaired"
            else:
                detail += f" | after the advice: {outcomes}"
                detail += "".join(each.printed.strip()[-300:] for each in again.values())
    file = re.sub(r"\d{6,}.*?(?=/|$)", "*", file)
    return Trial(seed, number, commit(), run.name, file, name, worst, where, detail)


def counts(trials: Sequence[Trial], field: str) -> dict[str, dict[str, int]]:
    """Return how often each outcome came, by the file or the damage."""
    found: dict[str, Counter[str]] = {}
    for trial in trials:
        found.setdefault(getattr(trial, field).partition(" ")[0], Counter())[trial.outcome] += 1
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def record_of(results: Sequence[Trial]) -> Mapping[str, Any]:
    """Return what the record keeps of results in order: counts over the newest of each trial, of each
    seed, those that end badly, and those that did so before.
    """
    newest = {(trial.seed, trial.number): trial for trial in results}
    trials = list(newest.values())
    before = (trial for trial in results if trial.is_bad and trial not in trials)
    return {
        "seeds": dict(sorted(Counter(trial.seed for trial in trials).items())),
        "n": len(trials),
        "outcomes": dict(Counter(trial.outcome for trial in trials)),
        "by_run": counts(trials, "run"),
        "by_file": counts(trials, "file"),
        "by_damage": counts(trials, "damage"),
        "by_commit": dict(Counter(trial.commit for trial in trials)),
        "bad": [asdict(trial) for trial in trials if trial.is_bad],
        "bad_before_a_mend": [asdict(trial) for trial in before],
    }


def read_results(path: Path) -> list[Trial]:
    """Return the results, of all seeds, in the order in which they were made."""
    if not path.exists():
        return []
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Trial(**{**row, "where": tuple(row["where"])}) for row in rows]


def make_trials(options: argparse.Namespace, folder: Path) -> None:
    """Make the trials that are to be done in a folder, and append their results."""
    path = folder / RESULTS
    newest = {(trial.seed, trial.number): trial for trial in read_results(path)}
    done = {which for which, trial in newest.items() if not trial.is_bad}
    numbers = [each for each in range(options.trials) if (options.seed, each) not in done]
    with quickened(rates_of(folder)):
        runs = prepare(folder / "made", options.only)
        baseline = functools.cache(Baseline.of)
        gc.collect()
        gc.freeze()  # what was imported is not looked through again in every trial
        end_s = time.monotonic() + 60 * options.minutes
        for number in numbers:
            if time.monotonic() > end_s:
                break
            drawn = random.Random(f"{options.seed}-{number}")
            run = drawn.choice(runs)
            trial = attempt(run, baseline(run), drawn, seed=options.seed, number=number)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
            print(*asdict(trial).values(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10, help="no trial starts after these")
    parser.add_argument("--only", default="", help="pattern of runs' names")
    parser.add_argument("--folder", type=Path, help="keeps runs and results there")
    parser.add_argument("--record", default="corruption", help="its name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        make_trials(options, folder)
        record = record_of(read_results(folder / RESULTS))
        os.chdir("/")
    write_record(options.record, record)
    print(json.dumps(record, indent=1))
    sys.exit(bool(record["bad"]))


if __name__ == "__main__":
    main()
