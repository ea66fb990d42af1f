"""Put faults under a run's mirror, lose the machine, run the same command again, and compare with
an undisturbed run bit for bit.

    python benchmarks/mirror_faults.py [--trials 200]
    python benchmarks/mirror_faults.py --drive      # on a real file system that misbehaves

A trial trains with a mirror in which, over a random stretch of its file operations, writes are
dropped, cut, delayed or get a flipped bit, renames are dropped, operations fail (permission, no
space, input/output error) or hang, or folders are removed in mid-copy; most sessions are ended by
SIGKILL, at a random operation of the mirror or at a random moment. Then the run folder is deleted
and the command is repeated without faults; in a third of the trials a second faulty session, on
another new machine, comes before that. Wanted: the newest point that was called durable (or a newer
one) is loaded, and the run ends like the undisturbed one.

Claims that were made before somebody removed the mirror's folder count no more.

With --drive, trials train onto a real file system that misbehaves (faulty_drive.py) from a random
step on: a write or a read never comes back, the quota is used up, written bytes are lost behind the page
cache, or by a drive that goes on showing them. No program can see the last of these through the
drive, so there only the end counts. Whether a process could end by itself is counted:
one that waits in the system for a drive that never answers ends only when that answers or is
unmounted.
"""

import argparse
import errno
import functools
import gc
import itertools
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.errors import BrimfulError
from brimful.base.rundir import read_journal
from brimful.chains import pipeline
from brimful.hardware import calibrate
from brimful.mirror import opening
from brimful.mirror.copier import Patience
from brimful.mirror.files import Files
from brimful.mirror.listener import Mirror
from brimful.mirror.status import MirrorStatus, read_status
from brimful.recipe import Recipe, load
from brimful.training import loop, optim
from brimful.training.admission import status_of
from brimful.training.checkpoint import CheckpointStore, differences
from brimful.training.checkpoint import load as load_checkpoint
from faulty_drive import FAULTS, Drive, mounted

RECIPE = """
name: run
sequence_length: 16
batch: {sequences: 4}
training: {steps: 16}
model: {architecture: gpt2, layers: 1, heads: 2, width: 16, dropout: 0.1}
tokenizer: {kind: bpe, vocabulary: 280}
data: {path: CORPUS, document_start: "^# ", validation: 0.2}
optimizer: {learning_rate: 1e-2, warmup: 3}
evaluation: {every: 6}
checkpoint: {every: 2}
sample: {tokens: 4}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
run: {mirror: MIRROR}
"""
TIMING = {
    *("step_time_s", "loader_wait_s", "core_wait_s", "tokens_per_second"),
    *("memory_bytes", "time", "seconds"),
}
KINDS = (
    "write dropped",
    "write cut",
    "bit flipped",
    "write delayed",
    "rename dropped",
    "permission lost",
    "no space left",
    "input/output error",
    "copy removed",
    "folder removed",
    "hang",
)
IMPATIENT = Patience(
    points_s=0.0,
    points_share=1e9,
    logs_s=0.05,
    log_share=0.5,
    stuck_s=0.4,
    first_retry_s=0.02,
    last_retry_s=0.1,
    final_retries_s=(0.02, 0.05),
    end_s=20.0,
    hint_s=20.0,
)
REFUSED = -2
STEP_S = 0.02
"""A step is made to take so long, that there is time to copy between checkpoints."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong in one session.

    Attributes:
        first, last: Operations of the mirror, counted from 0, in which it does.
        share: Of the operations in that stretch.
        kill_at: Operation at which the process is killed; None: not there.
        kill_after_s: Seconds into the mirror's work after which it is; None: not by the clock.
    """

    kind: str
    first: int
    last: int
    share: float
    kill_at: int | None
    kill_after_s: float | None
    seed: int

    @classmethod
    def drawn(cls, drawn: random.Random, kind: str) -> "Fault":
        first = int(
            1.05 ** drawn.uniform(0, 125)
        )  # up to 450: from the first operations on, also where the whole run takes few
        at_operation, by_clock = (drawn.randrange(5, 500), None), (None, drawn.uniform(0.05, 0.9))
        kill_at, kill_after_s = (
            (None, None)
            if drawn.random() < 0.3
            else at_operation
            if drawn.random() < 0.6
            else by_clock
        )
        return cls(
            kind,
            first,
            first + drawn.choice((3, 40, 200, 10_000)),
            drawn.choice((0.1, 0.5, 1.0)),
            kill_at,
            kill_after_s,
            drawn.randrange(2**31),
        )


class FaultyFiles(Files):
    """The mirror's primitives with a fault under them.

    Args:
        note: Told that the mirror's folder is about to be removed.
    """

    def __init__(self, fault: Fault, folder: Path, note: Callable[[], None]) -> None:
        super().__init__()
        self._fault, self._folder, self._note = fault, folder, note
        self._drawn = random.Random(fault.seed)
        self._count = -1
        self._has_removed = False

    def arm(self) -> None:
        """Start the clock of a kill, in the process that is to be killed."""
        if self._fault.kill_after_s is not None:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, self._fault.kill_after_s)

    def _strikes(self, *kinds: str) -> bool:
        """Whether it is the fault's turn at this operation, and it is of one of these kinds."""
        fault = self._fault
        return (
            fault.kind in kinds
            and fault.first <= self._count < fault.last
            and self._drawn.random() < fault.share
        )

    def _operation(self) -> None:
        """Before each: count, kill, fail, hang, remove."""
        self._count += 1
        if self._count == self._fault.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._strikes("permission lost"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if self._strikes("input/output error"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._strikes("hang"):
            time.sleep(0.5)
        if self._strikes("copy removed"):
            for aside in self._folder.glob("checkpoints/*.tmp-*"):
                shutil.rmtree(aside, ignore_errors=True)
        if self._strikes("folder removed") and not self._has_removed:
            self._has_removed = True
            self._note()  # first: the process may be killed in mid-removal
            shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, descriptor: int, data: bytes) -> None:
        self._operation()
        if self._strikes("no space left"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._strikes("write dropped"):
            return
        if self._strikes("write cut"):
            data = data[: self._drawn.randrange(len(data) + 1)]
        if self._strikes("bit flipped") and data:
            changed = bytearray(data)
            changed[self._drawn.randrange(len(changed))] ^= 1 << self._drawn.randrange(8)
            data = bytes(changed)
        if self._strikes("write delayed"):
            time.sleep(self._drawn.uniform(0, 0.1))
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._operation()
        super().sync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        self._operation()
        if not self._strikes("rename dropped"):
            super().rename(old, new)

    def make_folder(self, path: Path) -> None:
        self._operation()
        super().make_folder(path)

    def remove(self, path: Path) -> None:
        self._operation()
        super().remove(path)

    def read(self, path: Path) -> Iterator[bytes]:
        self._operation()
        return super().read(path)


@dataclass
class Bench:
    """A folder of trials, and the undisturbed run they are compared with."""

    folder: Path
    undisturbed: Path = field(init=False)

    def __post_init__(self) -> None:
        drawn, words = (
            random.Random(0),
            ["red", "green", "blue", "cat", "dog", "sees", "likes", "the", "a", "tree"],
        )
        documents = [
            f"# story {number}\n" + " ".join(drawn.choices(words, k=60)) + "\n"
            for number in range(60)
        ]
        (self.folder / "corpus.txt").write_text("".join(documents))
        text = RECIPE.replace("CORPUS", str(self.folder / "corpus.txt")).replace(
            "MIRROR", str(self.folder / "mirror")
        )
        (self.folder / "run.yaml").write_text(text)
        self.undisturbed = self.folder / "undisturbed" / "run"
        _train(self.recipe("undisturbed", "run.mirror=null"), self.folder / "undisturbed.log")
        gc.freeze()  # the processes of the trials are forked from this one, which has imported everything

    def recipe(self, machine: str, *changes: str) -> Recipe:
        """The recipe as it is run on one machine."""
        return load(
            str(self.folder / "run.yaml"), [f"run.folder={self.folder / machine}", *changes]
        )

    def drive_trial(self, number: int, fault: str, seed: int = 0) -> dict[str, Any]:
        """As `trial`, on a file system that misbehaves from a random step on."""
        drawn, loses_all = random.Random(f"{seed}:{number}:{fault}"), fault == "lost by drive"
        log, machine = self.folder / f"log{number}", f"machine{number}"
        first_step = drawn.randrange(3, 14)
        kill_after_s = drawn.uniform(0.3, 1.5) if drawn.random() < 0.5 else None
        with mounted(self.folder / f"drive{number}") as drive:
            mirrored = f"run.mirror={drive.folder}"
            run_folder = self.folder / machine / "run"

            def strike(step: int) -> None:
                if step == first_step:
                    drive.choose(fault)

            act = partial(
                _train_on_drive, self.recipe(machine, mirrored), log, strike, kill_after_s
            )
            code, could_end = _ended_or_released(_forked(act), drive)
            told, claimed = log.read_text(), read_status(run_folder)
            went_on = kill_after_s is not None or _is_finished(run_folder)
            shutil.rmtree(run_folder.parent, ignore_errors=True)
            drive.lose()
            log.write_text("")
            claim = 0 if claimed is None or loses_all else claimed.durable_step or 0
            status = self._finish(number, drive.folder, log, loses_all)
        is_told = could_end or code == signal.SIGKILL or "may not end" in told
        odd, loaded = self._judged(number, status, log, claim)
        if not is_told:
            odd.append("it was not told that the process cannot end")
        if not went_on:
            odd.append(f"training did not go on: it ended with {code}")
        return {
            "kind": fault,
            "killed": [code == signal.SIGKILL],
            "claimed": claim or None,
            "loaded": loaded,
            "could_end": could_end,
            "odd": odd,
        }

    def trial(self, number: int, kind: str, seed: int = 0) -> dict[str, Any]:
        """One trial: what was claimed, what was loaded, what differs from the undisturbed run, and
        how the faulty sessions ended.
        """
        drawn = random.Random(f"{seed}:{number}")
        mirror, log, removed = (
            self.folder / f"{name}{number}" for name in ("mirror", "log", "removed")
        )
        claimed: MirrorStatus | None = None
        killed = []
        for session in range(1 + (drawn.random() < 1 / 3)):
            machine = f"machine{number}-{session}"
            files = FaultyFiles(
                Fault.drawn(drawn, kind),
                mirror / "run",
                partial(_note_removal, removed),
            )
            act = partial(
                _train_with_fault, self.recipe(machine, f"run.mirror={mirror}"), log, files
            )
            killed.append(_in_a_child(act) == signal.SIGKILL)
            claimed = _newer(claimed, read_status(self.folder / machine / "run"), removed)
            shutil.rmtree(self.folder / machine, ignore_errors=True)
        log.write_text("")
        # A process killed in mid-removal may leave nothing whole.
        status = self._finish(number, mirror, log, removed.exists())
        claim = None
        if claimed is not None:
            claim = "finished" if claimed.finished else claimed.durable_step
        odd, loaded = self._judged(number, status, log, claim)
        shutil.rmtree(mirror, ignore_errors=True)
        return {"kind": kind, "killed": killed, "claimed": claim, "loaded": loaded, "odd": odd}

    def _finish(self, number: int, mirror: Path, log: Path, is_lost: bool) -> int:
        """Run the command without faults on the last machine; where that is refused and the mirror
        may hold nothing whole, again with another one, as the message advises. Returns how it ended.
        """
        folders = [mirror, self.folder / f"other{number}"] if is_lost else [mirror]
        for folder in folders:
            recipe = self.recipe(f"last{number}", f"run.mirror={folder}")
            status = _in_a_child(partial(_train, recipe, log))
            if status != REFUSED:
                break
        return status

    def _judged(
        self, number: int, status: int, log: Path, claim: int | str | None
    ) -> tuple[list[str], int | str | None]:
        """Return what is odd about the session on the last machine, and what it loaded.

        Args:
            status: How it ended.
            log: What it said.
            claim: The step that was called durable before, or `finished`.
        """
        told, folder = log.read_text(), self.folder / f"last{number}" / "run"
        odd, loaded = [f"ended with {status}: {told[-300:]}"], _loaded(told)
        if status == 0:
            odd = _differences(folder, self.undisturbed)
        reached, called = (
            math.inf if each == "finished" else int(each or 0) for each in (loaded, claim)
        )
        if reached < called:
            odd.append(f"{claim} was called durable, {loaded} was loaded")
        shutil.rmtree(folder.parent, ignore_errors=True)
        return odd, loaded


def _newer(
    before: MirrorStatus | None, now: MirrorStatus | None, removed: Path
) -> MirrorStatus | None:
    """The claim that holds after another session; one from before the mirror's folder was removed
    holds no more.
    """
    removed_s = float(removed.read_text()) if removed.exists() else 0.0
    holding = [
        each
        for each in (before, now)
        if each is not None and each.durable_time is not None and each.durable_time > removed_s
    ]
    return max(holding, key=lambda each: (each.finished, each.durable_step or 0), default=None)


def _train(recipe: Recipe, log: Path) -> None:
    with open(log, "a", encoding="utf-8") as file:
        pipeline.train(recipe, Console(file=file, width=200))


def _note_removal(path: Path) -> None:
    path.write_text(str(time.time()))


def _train_slowly(
    recipe: Recipe, log: Path, mirror: Callable[..., Any], before: Callable[[int], None]
) -> None:
    """Train with a mirror of another make, with time to copy in each step; `before` is called
    before each update.
    """
    real, steps = optim.guarded_update, itertools.count()

    def slow(*arguments: Any, **options: Any) -> Any:
        before(next(steps))
        time.sleep(STEP_S)
        return real(*arguments, **options)

    loop.guarded_update = slow  # type: ignore[attr-defined]
    opening.Mirror = mirror  # type: ignore[assignment,attr-defined]
    _train(recipe, log)


def _train_with_fault(recipe: Recipe, log: Path, files: FaultyFiles) -> None:
    files.arm()
    mirror = partial(Mirror, files=files, patience=IMPATIENT)
    _train_slowly(recipe, log, mirror, lambda step: None)


def _train_on_drive(
    recipe: Recipe, log: Path, strike: Callable[[int], None], kill_after_s: float | None
) -> None:
    def before(step: int) -> None:
        if step == 0 and kill_after_s is not None:
            signal.setitimer(signal.ITIMER_REAL, kill_after_s)
        strike(step)

    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    _train_slowly(recipe, log, partial(Mirror, patience=IMPATIENT), before)


def _ended_or_released(child: int, drive: Drive) -> tuple[int, bool]:
    """Wait for a process; if one of its threads never comes back from the drive, let the drive
    answer. Returns how it ended, as `_ended`, and whether it could end by itself.
    """
    deadline_s, seen_dead_s = time.monotonic() + 300, math.inf
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        now_s = time.monotonic()
        stat = Path(f"/proc/{child}/stat").read_text()
        if stat.rpartition(") ")[2].startswith("Z"):  # its first thread has ended, another has not
            seen_dead_s = min(seen_dead_s, now_s)
        if now_s > min(deadline_s, seen_dead_s + 2):
            drive.release()
            return _ended(child), False
        time.sleep(0.02)
    return _ended(child), True


def _is_finished(run_folder: Path) -> bool:
    return status_of(run_folder) == "finished"


def _in_a_child(act: Callable[[], object]) -> int:
    """Run `act` in a process of its own; returns the signal that killed it, 0 when all went well,
    -1 when it failed, REFUSED when it told an error.
    """
    return _ended(_forked(act))


def _forked(act: Callable[[], object]) -> int:
    """Start a process that does `act`, and return its number."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(-REFUSED if isinstance(error, BrimfulError) else 1)
        os._exit(0)
    return child


def _ended(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def _loaded(told: str) -> int | str | None:
    """What a session says that it brought back: a step, `finished`, or nothing."""
    for line in told.splitlines():
        if line.startswith("brought back from the mirror "):
            what = line.partition(": ")[2]
            return (
                "finished"
                if what.startswith("the finished run")
                else int(what.split(",")[0].removeprefix("step "))
            )
    return None


def _differences(left: Path, right: Path) -> list[str]:
    odd = differences(_final(left), _final(right))
    if (left / "model" / "model.safetensors").read_bytes() != (
        right / "model" / "model.safetensors"
    ).read_bytes():
        odd.append("exported model")
    return odd + (["metrics"] if _numbers(left) != _numbers(right) else [])


def _final(run_folder: Path) -> Any:
    store = CheckpointStore(run_folder / "checkpoints", keep=2)
    return load_checkpoint(store.path_of(store.steps()[-1]))


def _numbers(run_folder: Path) -> list[dict[str, Any]]:
    records = (
        record
        for record in read_journal(run_folder / "metrics.jsonl")
        if record["kind"] in ("step", "evaluation")
    )
    return [
        {key: value for key, value in record.items() if key not in TIMING} for record in records
    ]


def prepare(folder: Path) -> Bench:
    """What a process does once before its trials."""
    os.environ["BRIMFUL_CACHE"] = str(folder / "cache")
    calibrate.measure_matrix_rates = functools.cache(
        lambda device, dtypes, real=calibrate.measure_matrix_rates: real(device, dtypes)
    )
    return Bench(folder)


def main() -> None:
    """Make the trials, and write the record."""
    from record import write_record  # beside this file; the tests load it from elsewhere

    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", action="store_true")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.drive and (problem := Drive.problem(folder / "probe")) is not None:
            raise SystemExit(problem)
        bench = prepare(folder)
        kinds: Sequence[str] = FAULTS[1:] if options.drive else KINDS
        trial: Callable[..., dict[str, Any]] = bench.drive_trial if options.drive else bench.trial
        for number in range(options.trials):
            results.append(trial(number, kinds[number % len(kinds)], options.seed))
            print(number, results[-1], flush=True)
    values = summary(results)
    print(f"{values['sound']} of {options.trials} sound")
    print(write_record("mirror_drive" if options.drive else "mirror_faults", values))
    raise SystemExit(values["sound"] != options.trials)


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the record keeps of trials."""
    sessions = [killed for each in results for killed in each["killed"]]
    outcomes: dict[str, Counter[str]] = {}
    for each in results:
        outcomes.setdefault(each["kind"], Counter())["odd" if each["odd"] else "sound"] += 1

    def counted(what: str) -> dict[str, int]:
        told = (each[what] for each in results)
        return dict(
            Counter(
                "nothing" if each is None else "finished" if each == "finished" else "a step"
                for each in told
            )
        )

    return {
        "trials": len(results),
        "sound": sum(not each["odd"] for each in results),
        "sessions": len(sessions),
        "sessions_killed": sum(sessions),
        "by_kind": {kind: dict(found) for kind, found in outcomes.items()},
        "claimed": counted("claimed"),
        "loaded": counted("loaded"),
        "could_not_end_by_itself": sum(not each.get("could_end", True) for each in results),
    }


if __name__ == "__main__":
    main()
