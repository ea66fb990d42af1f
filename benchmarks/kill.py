"""Kill runs of every kind with SIGKILL, finish each by the same command, and compare all that
counts with an undisturbed run, bit for bit.

    python benchmarks/kill.py [--trials 1000] [--kinds documents lora] [--folder FOLDER]

A kind is one command: a run of each kind and method, a base that is trained first, a study, rounds
of rejection sampling, an evaluation, an export, LoRA on a published model, two ranks. A trial begins with an
empty folder and without tokenizers and tokens in the cache, a quarter also without the traces of
its step (tracing takes half of so short a run), is killed one to three times, and then finished. Half of the kills come at a random moment between the start and the end, so also while
planning, tokenising, evaluating and writing the report; half just before a random file operation
(opening for writing, fsync, rename, removal, new folder; not those of tensorboard's log, which are
most). Of rounds whose answers are programs ("rft"), most kills come just before a random call of
one phase: sampling, verifying, tuning or evaluating. Of two ranks the launcher or one of them is
killed at a random moment. A process that a killed one leaves behind is odd, too.

Compared are all files of the trial (the newest checkpoint, exported models, scores, samples, what
was measured at steps and evaluations, the sections of reports on scores, samples and data), without
what a clock or the machine's memory said, names of processes, and hidden temporary files. The
undisturbed run is another process with another seed of Python's hashes, so an order of a set that
got into a file would show. A run that ended before its first kill is no trial.

With a folder, trials whose results lie there are not made again, but those that were odd are: they
are mended by then, or still odd. Each result names the commit that it was made with.

To be quick, one process imports everything and forks for each start. It has no threads when it
forks; a forked process starts those of a run itself. What the page cache holds survives a kill:
loss of power is another matter.
"""

import argparse
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import math
import mmap
import os
import pkgutil
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

import brimful
from brimful.base.env import cache_folder
from brimful.base.errors import PlanError
from brimful.model.obtained import folder_of_model
from record import commit, write_record

RECIPE = """
name: run
sequence_length: 32
batch: {sequences: 4}
training: {steps: 6}
model: {architecture: llama, layers: 1, heads: 2, width: 64, context: 128}
tokenizer: {kind: bpe, vocabulary: 280}
data: {path: ../corpus.txt, document_start: "^# ", validation: 0.2}
optimizer: {learning_rate: 1.0e-2, warmup: 2}
evaluation: {every: 3, max_examples: 4, base: always}
checkpoint: {every: 2}
sample: {tokens: 4}
plan: {device: cpu, precision: fp32, threads: 1, micro_batch: 2, compile: false}
run: {folder: runs}
"""
ENCODER = (
    "method=mlm",
    "model={architecture: modernbert, layers: 1, heads: 2, width: 32}",
    "sequence_length=24",
)
TUNED = (
    "method=sft",
    "tokenizer=null",
    "sequence_length=64",
    "data={path: ../examples.jsonl, validation: 0.2, long_documents: drop, duplicates: drop}",
    "sample={prompt: Say red twice., tokens: 4, temperature: 0.0}",
)
ON_BASE = (*TUNED, "model=../base")
LABELS = (
    "method=classify",
    "tokenizer=null",
    "sequence_length=24",
    "data={path: ../texts.csv, validation: 0.2, test: 0.2, long_documents: truncate}",
    "labels={class_weights: balanced}",
)
RFT = (
    "rft={questions: {path: ../questions.jsonl}, verifier: regex, distinct_by: text,"
    " samples_per_prompt: 3, keep_per_prompt: 2, max_new_tokens: 24, rounds: 2}"
)
RFT_PROGRAMS = (
    "rft={questions: {path: ../programs.jsonl}, verifier: mbpp, distinct_by: text, temperature: 0.3,"
    " samples_per_prompt: 3, keep_per_prompt: 2, max_new_tokens: 24, rounds: 2}"
)
PREFERENCES = (
    *ON_BASE,
    "data={path: ../pairs.jsonl, validation: 0.2}",
    "adapter.rank=2",
    "preference.reference=kept",
)
ROUNDS = (*ON_BASE, "adapter.rank=2", "training.steps=40", "checkpoint.every=15")
REWARDS = (
    *ON_BASE,
    "method=grpo",
    "sequence_length=96",
    "data={path: ../rewarded.jsonl, validation: 0.2}",
    "batch.sequences=8",
    "rewards={verifiers: {regex: 1.0}, samples_per_prompt: 4, max_new_tokens: 12}",
)
PUBLISHED = "smollm2-135m-instruct"
KINDS: dict[str, tuple[str, ...]] = {
    "documents": ("model={architecture: gpt2, layers: 1, heads: 2, width: 32, dropout: 0.1}",),
    "long": (
        "optimizer.spikes=rollback",
        "plan.precision=bf16",
        "training.steps=90",
        "checkpoint.every=20",
        "evaluation.every=30",
    ),
    "masked": ENCODER,
    "feedback": (
        "model={architecture: okadfa, layers: 1, heads: 2, width: 32}",
        "method=feedback",
        "orthogonality={}",
    ),
    "lora": (*ON_BASE, "adapter.rank=2", "evaluation.tasks=[code-syntax]"),
    "full": ON_BASE,
    "qlora": (*ON_BASE, "adapter.rank=2", "quantize=nf4"),
    "pairs": (*PREFERENCES, "method=dpo"),
    "pairs, nf4": (*PREFERENCES, "method=dpo", "quantize=nf4"),
    "judged": (*PREFERENCES, "method=kto", "adapter.dora=true"),
    "rewards": (*REWARDS, "adapter.rank=2"),
    "rewards, nf4": (*REWARDS, "adapter.rank=2", "quantize=nf4", "rewards.kl=0.1"),
    "rewards, full": (*REWARDS, "rewards.batches=2", "rewards.passes=2", "rewards.loss=dapo"),
    "labels": (*LABELS, "model=../encoder"),
    "base first": (*TUNED, "model=recipe:../base.yaml", "adapter.rank=2"),
    "study": ("study.variants={a: [], b: [seed=5]}",),
    "rounds": (*ROUNDS, "evaluation={every: 20, base: never}", RFT),
    "rft": (
        *ON_BASE,
        "training.steps=60",
        "checkpoint.every=25",
        "data.path=../programs_solved.jsonl",
        "evaluation={every: 20, base: never, tasks: [code-syntax], max_examples: 4}",
        RFT_PROGRAMS,
    ),
    "evaluation": (*ON_BASE, "adapter.rank=2"),
    "export": (*ON_BASE, "adapter.rank=2"),
    PUBLISHED: (
        *TUNED,
        f"model={PUBLISHED}",
        "adapter.rank=2",
        "batch.sequences=2",
        "training.steps=4",
        "evaluation={every: 2, max_sequences: 2, base: never}",
    ),
    "ranks": (),
}
"""By name: the changes of the recipe."""
OTHER_VERBS = {
    "evaluation": ["evaluate", "runs/run", "--split", "train"],
    "export": ["export", "runs/run", "--merge"],
}
"""Kinds in which a finished run is there before, and this command is killed."""
PHASES = {
    "sampling": ("brimful.chains.sampling_session", "first_stop"),
    "verifying": ("brimful.verify.background", "judge"),
    "tuning": ("brimful.training.loop", "guarded_update"),
    "evaluating": ("brimful.evaluation.task_run", "_extracted"),
}
"""Functions whose calls are counted in rounds of programs."""
FILES = "files"
COUNTED: dict[str, tuple[str, ...]] = {"rft": (FILES, *PHASES, *PHASES)}
"""By kind: before what a process is killed that is not killed at a random moment."""
COUNTED_SHARE = {"rft": 0.8, "ranks": 0.0}
"""Of the kills, those before a counted call; half where a kind is not named."""
RANKS = 2
TRACED_SHARE = 0.25
"""Of the trials, which begin without the traces of the step."""
PUBLISHED_EVERY = 100
"""Trials between two on the published model, which take as long as twenty others."""
HAD_ENDED = "not: it had ended"
RESULTS = "results.jsonl"

CLOCK = re.compile(r"(^|_)(seconds?|s|time|time_unix|per_second|per_s|memory_bytes|mfu)$")
EQUAL_TIME = "validation loss at equal time"
UNCOMPARED_KEYS = {
    *("check", "checksum", "id", "run_id", "journal_bytes", "notes", "samples_before"),
    "monitored_until",  # a time
    *("records", "run_files"),  # how many records there are, and copies of files compared here
    EQUAL_TIME,
}
UNCOMPARED = re.compile(
    r"/tensorboard/|/drawn\.jsonl|monitor\.jsonl|environment\.json|plan\.json|MANIFEST\.json|\.lock|hang\.txt|/\.[^/]*\.tmp$"
)
SECTIONS = re.compile(r'(?s)<section id="(base|scores|samples|data|tuning|labels)">.*?</section>')
TIMED = re.compile(
    r'<td data-name="[^"]*(/s|[Tt]ime|Seconds)[^"]*"[^>]*>.*?</td>|seconds [\d.]+'
    r"|(?s:<h3>[^<]* at equal time.*?</table>)"
    r'|<p class="note">\d+ samples are there from before.</p>\s*'
)
"""What a page says of time, and of samples that were there when a session began."""
NO_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
PATIENCE_S = 600.0
COUNT_BYTES = 64
"""Of the shared memory, in front of what a process was about to do."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Ended:
    """How a start ended: exit code, None if killed; file operations, calls in phases and seconds
    until then; what it was about to do if it was killed before one of these; processes that were
    there for 10 seconds after it.
    """

    code: int | None
    calls: dict[str, int]
    seconds: float
    about_to: str = ""
    left_behind: tuple[str, ...] = ()


class Starter:
    """Starts the command line in processes that are forked from this one."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1024)

    def start(
        self,
        words: list[str],
        folder: Path,
        *,
        at: tuple[str, int] = ("", 0),
        after_s: float | None = None,
        victim: int = 0,
    ) -> Ended:
        """Run `brimful WORDS` in a folder, and kill it where that is asked for: before the so
        manieth file operation or call of a phase; or after some seconds, then with a victim above 0
        that rank alone.
        """
        self._shared[:] = bytes(1024)
        started_s = time.monotonic()
        child = os.fork()
        if child == 0:
            self._be_brimful(words, folder, at)
        descriptor = os.pidfd_open(child)
        limit_s = PATIENCE_S if after_s is None else after_s
        is_killed = not select.select([descriptor], [], [], limit_s)[0]
        ranks = psutil.Process(child).children() if is_killed and victim else []
        if len(ranks) == RANKS:
            ranks[victim - 1].kill()
            is_killed = bool(select.select([descriptor], [], [], PATIENCE_S)[0])
        elif is_killed:
            os.kill(child, signal.SIGKILL)
        os.close(descriptor)
        _, status = os.waitpid(child, 0)
        ended = os.waitstatus_to_exitcode(status)
        code = None if ended < 0 or (is_killed and ended) else ended
        about_to = self._shared[COUNT_BYTES:].rstrip(b"\0").decode()
        seconds = time.monotonic() - started_s
        return Ended(code, self._calls(), seconds, about_to, _left_behind())

    def _calls(self) -> dict[str, int]:
        counts = struct.unpack_from(f"<{1 + len(PHASES)}q", self._shared)
        return dict(zip((FILES, *PHASES), counts, strict=True))

    def _be_brimful(self, words: list[str], folder: Path, at: tuple[str, int]) -> None:
        code = 1
        try:
            os.chdir(folder)
            os.environ["BRIMFUL_CACHE"] = str(folder / "cache")
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self._count(folder, at)
            sys.argv = ["brimful", *words]
            import torch

            from brimful.cli import main as command_line

            torch.set_num_threads(1)  # makes its pool anew: a fork has none of the pool's threads
            try:
                command_line()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            (folder / "modules").write_text("\n".join(sys.modules))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _count(self, folder: Path, at: tuple[str, int]) -> None:
        """Count file operations of this process and calls in phases, and end it before one."""
        shared, places = self._shared, (FILES, *PHASES)

        def note(counted: str, what: str, path: object = "") -> None:
            start = 8 * places.index(counted)
            count = 1 + int.from_bytes(shared[start : start + 8], "little")
            shared[start : start + 8] = count.to_bytes(8, "little")
            if (counted, count) == at:
                place = re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", str(path).removeprefix(f"{folder}/"))
                told = f"{what} {place}".strip().encode()[:900]
                shared[COUNT_BYTES : COUNT_BYTES + len(told)] = told
                os.kill(os.getpid(), signal.SIGKILL)

        def counting(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                note(phase, phase)
                return function(*arguments, **named)

            return call

        for phase, (module, name) in PHASES.items():
            where = importlib.import_module(module)
            setattr(where, name, counting(phase, getattr(where, name)))

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")
            if event == "open" and isinstance(arguments[2], int):
                changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
            path = str(arguments[0]) if changes else ""
            if changes and "tensorboard" not in path and not path.startswith(("/dev/", "/proc/")):
                note(FILES, event.removeprefix("os."), path)

        real = os.fsync

        def fsync(fd: Any) -> None:
            note(FILES, "fsync", os.readlink(f"/proc/self/fd/{int(fd)}"))
            real(fd)

        os.fsync = fsync
        sys.addaudithook(heard)


def _left_behind() -> tuple[str, ...]:
    """Wait for the processes that an ended one leaves to this one, and end and tell those that go
    on.
    """
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return ()
        time.sleep(0.02)
    left = psutil.Process().children(recursive=True)
    for process in left:
        process.kill()
    return tuple(" ".join(each.cmdline()) for each in left)


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: what counts in it, its counted calls and seconds, what it imported."""

    facts: dict[str, Any]
    calls: dict[str, int]
    seconds: float
    modules: list[str]


class Bench:
    """The trials of one kind.

    Args:
        root: Holds data, bases, and the cache that trials begin with.
    """

    def __init__(self, root: Path, kind: str) -> None:
        self.kind = kind
        self._root, self._folder = root, root / kind
        self._starter, self._whole_s = Starter(), math.inf
        ranks = ["--devices", str(RANKS)] if kind == "ranks" else []
        self._words = ["run", "../recipe.yaml", *ranks, *KINDS[kind]]
        self._traces = root / f"{kind} traces"

    def undisturbed(self) -> Whole:
        """Make a run that nobody kills, once the traces of its step are kept."""
        folder = self._new_folder()
        if self._starter.start(self._killed_words, folder).code == 0:
            shutil.copytree(folder / "cache" / "traces", self._traces)
        folder = self._new_folder()
        ended = self._starter.start(self._killed_words, folder)
        if ended.code != 0:
            raise RuntimeError(f"{self.kind}: {_told(folder)}")
        modules = (folder / "modules").read_text().split()
        return Whole(facts(folder), ended.calls, ended.seconds, modules)

    def trial(self, number: int, whole: Whole) -> dict[str, Any]:
        """Kill, finish and compare."""
        drawn = random.Random(f"{self.kind} {number}")
        folder, kills, left = self._new_folder(), [], 1.0
        behind: list[str] = []
        if drawn.random() < TRACED_SHARE:
            shutil.rmtree(folder / "cache" / "traces")
        self._whole_s = min(self._whole_s, whole.seconds)
        for _ in range(drawn.randint(1, 3)):
            if drawn.random() < COUNTED_SHARE.get(self.kind, 0.5):
                what = drawn.choice(COUNTED[self.kind]) if self.kind in COUNTED else FILES
                at = (what, drawn.randint(1, max(1, int(left * whole.calls[what]))))
                ended = self._starter.start(self._killed_words, folder, at=at)
                kills.append(ended.about_to)
            else:
                after_s = drawn.uniform(0, left * self._whole_s)
                victim = drawn.randint(0, RANKS) if self.kind == "ranks" else 0
                told = f", rank {victim - 1}" if victim else ""
                ended = self._starter.start(
                    self._killed_words, folder, after_s=after_s, victim=victim
                )
                kills.append(f"a random moment{told}")
            behind += ended.left_behind
            if ended.code is not None:
                kills[-1] = HAD_ENDED
                if len(kills) == 1:
                    self._whole_s = ended.seconds
                break
            left *= 0.7
        else:
            ended = self._starter.start(self._killed_words, folder)
        odd = [f"ended with {ended.code}: {_told(folder)}"]
        if ended.code == 0:
            odd = differences(facts(folder), whole.facts)
        odd += [f"left behind: {each}" for each in behind]
        if odd:
            shutil.copytree(folder, self._root.parent / f"odd {self.kind} {number}", symlinks=True)
        return {"kills": kills, "odd": odd}

    @property
    def _killed_words(self) -> list[str]:
        return OTHER_VERBS.get(self.kind, self._words)

    def _new_folder(self) -> Path:
        """Empty the folder; always the same, because runs note where their data lie."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        shutil.copytree(self._root / "cache", self._folder / "cache", symlinks=True)
        if self._traces.exists():
            shutil.copytree(self._traces, self._folder / "cache" / "traces", dirs_exist_ok=True)
        if self.kind in OTHER_VERBS:
            finished = self._root / f"{self.kind} finished"
            if not finished.exists():
                if self._starter.start(self._words, self._folder).code:
                    raise RuntimeError(_told(self._folder))
                shutil.copytree(self._folder / "runs", finished)
                shutil.rmtree(self._folder / "runs")
            shutil.copytree(finished, self._folder / "runs")
        return self._folder


def _told(folder: Path) -> str:
    return (folder / "log").read_text()[-1500:]


def facts(folder: Path) -> dict[str, Any]:
    """What counts in a trial's folder: by file, its content without clocks."""
    newest = {max(path.glob("step-*")) for path in folder.rglob("checkpoints")}
    found: dict[str, Any] = {}
    for path in sorted((folder / "runs").rglob("*")):
        name = str(path.relative_to(folder))
        steps = [part for part in path.parents if part.parent.name == "checkpoints"]
        if path.is_file() and not UNCOMPARED.search(name) and newest.issuperset(steps):
            found[name] = _content(path)
    return found


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return _without_clocks(json.loads(path.read_text()))
    if path.name == "metrics.jsonl":
        records = map(json.loads, path.read_text().splitlines())
        return [_without_clocks(row) for row in records if row["kind"] in ("step", "evaluation")]
    if path.suffix == ".jsonl":
        rows = [_without_clocks(json.loads(line)) for line in path.read_text().splitlines()]
        # Answers stand in the order in which they were drawn.
        texts = {json.dumps(each, sort_keys=True) for each in rows}
        return sorted(texts) if path.name == "answers.jsonl" else rows
    if path.suffix == ".html":
        page = TIMED.sub("", path.read_text())
        return [section[0] for section in SECTIONS.finditer(page)]
    if path.suffix == ".md":
        return None
    return sha256(path.read_bytes()).hexdigest()


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_clocks(each)
            for key, each in value.items()
            if key not in UNCOMPARED_KEYS and not CLOCK.search(key)
        }
    return [_without_clocks(each) for each in value] if isinstance(value, list) else value


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names of files that only one has, or that differ."""
    return [name for name in sorted(left | right) if left.get(name, 0) != right.get(name, 0)]


def write_data(root: Path) -> None:
    """Documents, instructions with answers, pairs of answers, questions, texts with labels, recipes."""
    drawn, words = (
        random.Random(0),
        ["red", "green", "blue", "cat", "dog", "sees", "likes", "tree", "win", "cash", "prize"],
    )
    stories = [f"# story {n}\n{' '.join(drawn.choices(words, k=60))}\n" for n in range(40)]
    (root / "corpus.txt").write_text("".join(stories))
    asked = [(drawn.choice(words[:3]), drawn.randint(1, 4)) for _ in range(40)]
    examples = [
        {"instruction": f"Say {word} {n} times, {i}.", "output": " + ".join([word] * n)}
        for i, (word, n) in enumerate(asked)
    ]
    _write_rows(root / "examples.jsonl", examples)
    questions = [
        {"question": f"Say {word} {n} times.", "answer": "[^q]+", "kind": word}
        for word in words[:3]
        for n in range(1, 5)
    ]
    _write_rows(root / "questions.jsonl", questions)
    rewarded = [{**each, "answer": "(?s)[^e]*"} for each in questions]
    _write_rows(root / "rewarded.jsonl", rewarded)
    solved = [{**each, "output": "1" * n} for each, (_, n) in zip(examples, asked, strict=True)]
    _write_rows(root / "programs_solved.jsonl", solved)
    programs = [{**each, "code": "1", "test_list": ["assert True"]} for each in questions]
    _write_rows(root / "programs.jsonl", programs)
    rows = []
    for number in range(100):
        known, label = (words[7:], "spam") if number % 4 == 0 else (words[:7], "ham")
        rows.append(f"{' '.join(drawn.choices(known, k=drawn.randint(4, 10)))},{label}\n")
    (root / "texts.csv").write_text("text,label\n" + "".join(rows))
    pairs = [
        {
            "prompt": f"{example['instruction']} ",
            "chosen": example["output"],
            "rejected": " ".join(drawn.choices(words[3:], k=drawn.randint(1, 4))),
        }
        for example in examples
    ]
    _write_rows(root / "pairs.jsonl", pairs)
    (root / "recipe.yaml").write_text(RECIPE)
    (root / "base.yaml").write_text(RECIPE.replace("name: run", "name: base", 1) + "seed: 2\n")


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(root: Path) -> None:
    """Write data, and train a base and an encoder; what these measure of the machine is kept."""
    write_data(root)
    starter = Starter()
    (root / "bases").mkdir()
    for name, changes in (("base", ()), ("encoder", ENCODER)):
        words = ["run", "../recipe.yaml", *changes, f"run.name={name}", "training.steps=30"]
        if starter.start(words, root / "bases").code:
            raise SystemExit(_told(root / "bases"))
        shutil.copytree(root / "bases" / "runs" / name / "model", root / name)
    cache = shutil.copytree(root / "bases" / "cache", root / "cache")
    for name in ("tokens", "tokenizers"):
        shutil.rmtree(cache / name)
    published = cache_folder() / "models"
    if published.is_dir():
        (cache / "models").symlink_to(published.resolve())


def import_all(names: Iterable[str]) -> None:
    """Import what runs have imported, so that each fork has it."""
    for name in names:
        if name not in sys.modules and not name.endswith("__main__"):
            try:
                importlib.import_module(name)
            except Exception:  # noqa: S112  # made at run time, or by a library for itself
                continue
    gc.collect()
    gc.freeze()
    if (num_threads := len(os.listdir("/proc/self/task"))) != 1:
        raise SystemExit(f"{num_threads} threads: a process with threads must not fork")


def work(root: Path, kinds: Sequence[str], trials: int, until: float) -> None:
    """In a process of its own: make the undisturbed runs, or, where they are, the trials."""
    import torch

    from brimful.hardware import calibrate
    from brimful.hardware.matrix_rates import MATRIX_DTYPES

    rates = functools.cache(calibrate.measure_matrix_rates)
    rates(torch.device("cpu"), MATRIX_DTYPES)
    calibrate.measure_matrix_rates = rates
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not trials:
        import_all(each.name for each in pkgutil.walk_packages(brimful.__path__, "brimful."))
        prepare(root)
        for kind in kinds:
            try:
                whole = Bench(root, kind).undisturbed()
            except RuntimeError as error:
                print(f"left out: {error}", flush=True)
                continue
            _file_of(root, kind).write_text(json.dumps(asdict(whole)))
        return
    wholes = {
        kind: Whole(**json.loads(_file_of(root, kind).read_text()))
        for kind in kinds
        if _file_of(root, kind).exists()
    }
    import_all(dict.fromkeys(name for whole in wholes.values() for name in whole.modules))
    benches = {kind: Bench(root, kind) for kind in wholes}
    quick = [kind for kind in wholes if kind != PUBLISHED]
    done, made_with = {each["number"] for each in _results(root) if not each["odd"]}, commit()
    for number in (each for each in range(trials) if each not in done):
        if time.time() > until:
            return
        kind = quick[number % len(quick)]
        if PUBLISHED in wholes and number % PUBLISHED_EVERY == 20:
            kind = PUBLISHED
        tried = benches[kind].trial(number, wholes[kind])
        result = {"number": number, "kind": kind, "commit": made_with, **tried}
        print(f"{number} {kind}: {result['kills']}: {result['odd'] or 'equal'}", flush=True)
        with open(root.parent / RESULTS, "a") as file:
            file.write(json.dumps(result) + "\n")


def _file_of(root: Path, kind: str) -> Path:
    return root / f"{kind}.json"


def _results(root: Path) -> list[dict[str, Any]]:
    path = root.parent / RESULTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Do the trials of all kinds in turn, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e6, help="No new trial after these.")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--folder", type=Path, help="Holds the results, and trials that are odd.")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        root, trials, until = options.work
        work(Path(root), options.kinds, int(trials), float(until))
        return
    if PUBLISHED in options.kinds:
        with contextlib.suppress(PlanError):  # its undisturbed run says why, and it is left out
            folder_of_model(PUBLISHED)
    until = time.time() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="kill-") as temporary:
        root = (options.folder or Path(temporary)).resolve() / "made"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for trials in (0, options.trials):
            words = [str(root), str(trials), str(until), "--kinds", *options.kinds]
            command = [sys.executable, __file__, "--work", *words]
            subprocess.run(command, env=os.environ | NO_THREADS, check=True)
        values = summary(_results(root))
    print(f"{values['equal']} of {values['trials']} equal, {values['kills']} kills")
    print(write_record("kill", values))
    raise SystemExit(values["equal"] != values["trials"])


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the record keeps of results in order; of each trial the last counts."""
    last = {each["number"]: each for each in trials}
    mended = [each for each in trials if each["odd"] and each is not last[each["number"]]]
    trials, drawn = list(last.values()), len(last)
    trials = [each for each in trials if set(each["kills"]) != {HAD_ENDED}]
    by_kind = {
        kind: {
            "trials": len(each),
            "equal": sum(not trial["odd"] for trial in each),
            "kills": sum(kill != HAD_ENDED for trial in each for kill in trial["kills"]),
        }
        for kind in KINDS
        if (each := [trial for trial in trials if trial["kind"] == kind])
    }
    kills = Counter(kill for trial in trials for kill in trial["kills"])
    del kills[HAD_ENDED]
    return {
        "trials": len(trials),
        "equal": sum(not each["odd"] for each in trials),
        "kills": kills.total(),
        "left_out_as_the_run_ended_before_a_kill": drawn - len(trials),
        "by_kind": by_kind,
        "odd_and_mended_since": mended,
        "by_commit": dict(Counter(each["commit"] for each in trials)),
        "odd": [trial for trial in trials if trial["odd"]],
        "killed_at": dict(kills.most_common()),
    }


if __name__ == "__main__":
    main()
