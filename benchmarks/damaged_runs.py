"""Small runs of every kind, studies, mirrors, drawings of samples, bases and caches to be damaged,
and what reads them: every verb that answers from a folder, in this process, and from a cache in
processes that have read none yet.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import re
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import typer.main
from matplotlib.figure import Figure

from brimful.base.errors import BrimfulError
from brimful.base.rundir import read_json
from brimful.cli import main as brimful
from brimful.hardware import calibrate
from brimful.hardware.matrix_rates import MATRIX_DTYPES
from brimful.report.page.run_page import run_view
from brimful.report.text import prediction_lines
from brimful.report.views import as_json
from brimful.runs.folder import read_run
from brimful.runs.side_by_side import read_side_by_side
from brimful.training import loop, optim

sys.path.append(str(Path(__file__).parents[1] / "tests" / "fixtures"))
import make_old_runs  # type: ignore[import-not-found]

STUDY = (
    make_old_runs.RECIPES["documents"].replace("name: documents", "name: study")
    + """\
study:
  variants:
    plain: []
    slower: [optimizer.learning_rate=5e-3]
"""
)
ROUNDS = f"""\
name: rounds
method: sft
model: base
sequence_length: 64
batch: {{sequences: 4}}
training: {{steps: 40}}
data: {{path: data/examples.jsonl, validation: 0.2, long_documents: drop, duplicates: drop}}
optimizer: {{learning_rate: 2.0e-2, warmup: 2}}
evaluation: {{every: 20, max_examples: 4}}
sample: {{prompt: "Say red twice.", tokens: 8, temperature: 0.0}}
{make_old_runs.PLAN}
rft:
  questions: {{path: data/questions.jsonl}}
  verifier: regex
  distinct_by: text
  samples_per_prompt: 4
  keep_per_prompt: 2
  max_new_tokens: 24
  rounds: 1
"""
ON_BASE = make_old_runs.RECIPES["examples"]
RECIPES = {
    **make_old_runs.RECIPES,
    "pairs": ON_BASE.replace("name: examples", "name: pairs")
    .replace("method: sft", "method: dpo")
    .replace("data/examples.jsonl", "data/pairs.jsonl")
    + "preference: {reference: kept}\n",
    "rewards": ON_BASE.replace("name: examples", "name: rewards")
    .replace("method: sft", "method: grpo")
    .replace("data/examples.jsonl", "data/rewarded.jsonl")
    .replace("sequence_length: 64", "sequence_length: 96")
    + "rewards: {verifiers: {regex: 1.0}, samples_per_prompt: 4, max_new_tokens: 12}\n",
    "study": STUDY,
    "rounds": ROUNDS,
}
QUESTIONS = "".join(
    json.dumps({"question": f"Say {color} {times} times.", "answer": "[a-z ]+", "kind": color})
    + "\n"
    for color in ("red", "green", "blue")
    for times in (1, 3)
)
PAIRS = "".join(
    json.dumps({"prompt": f"Say {color}, {n}. ", "chosen": color, "rejected": "cat dog"}) + "\n"
    for n, color in enumerate(("red", "green", "blue") * 10)
)
REWARDED = QUESTIONS.replace("[a-z ]+", "(?s)[^e]*") * 3
_AGES = re.compile(r"[^,\n]* ago|did not change for [\w ]*")
LOST = re.compile(r"^.*the model is that of step \d+: .* is lost$", re.MULTILINE)
"""Said where a damage hit both a run's model and the checkpoint that it was made from."""
PRELOADED = [
    "damaged_runs",
    "brimful.chains.pipeline",
    "brimful.chains.plans",
    "brimful.rehearsal.tracer",
    "transformers.models.llama.modeling_llama",
    "peft",
]
NUM_RANKS = 2
A_DAY_S = 24 * 3600.0
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


class _Killed(BaseException):
    """Ends a training as a kill would: nothing is written any more."""


@contextlib.contextmanager
def killed_in_update(number: int) -> Iterator[None]:
    """End a training inside in its update of this number."""
    update, num_updates = optim.guarded_update, itertools.count(1)

    def guarded_update(*arguments: Any, **named: Any) -> Any:
        if next(num_updates) == number:
            raise _Killed
        return update(*arguments, **named)

    loop.guarded_update = guarded_update  # type: ignore[attr-defined]
    try:
        with contextlib.suppress(_Killed):
            yield
    finally:
        loop.guarded_update = update  # type: ignore[attr-defined]


def rates_of(campaign: Path) -> dict[str, float]:
    """Return the machine's rates as the first process of a campaign measured them: a plan that lost
    the kept ones is then that of before, in whichever process it is made.
    """
    path = campaign / "rates.json"
    if not path.exists():
        rates = calibrate.measure_matrix_rates(torch.device("cpu"), MATRIX_DTYPES)
        path.write_text(json.dumps(rates), encoding="utf-8")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _as_empty_svg(_figure: Figure, file: Any, **_options: Any) -> None:
    file.write('<svg viewBox="0 0 1 1"></svg>')


@contextlib.contextmanager
def quickened(measured: dict[str, float] | None = None) -> Iterator[None]:
    """Verbs cost less inside, and answer the same: the machine is measured once (None: it is yet to
    be), the command line is built once, and figures are drawn but not turned into SVG, since
    nothing reads a report's.
    """
    rates = functools.cache(calibrate.measure_matrix_rates)
    if measured is not None:
        rates = functools.cache(lambda *_: measured)
    commands = functools.cache(typer.main.get_command)
    with (
        mock.patch.object(calibrate, "measure_matrix_rates", rates),
        mock.patch.object(typer.main, "get_command", commands),
        mock.patch.object(Figure, "savefig", _as_empty_svg),
    ):
        yield


def ask(*arguments: str) -> Reply:
    """Run a verb in this process; seconds that something took are no answers."""
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
    answers = {name: each for name, each in answers.items() if not name.endswith("/seconds")}
    return Reply(code, answers, f"{text}\n{told.getvalue()}")


def ask_report(run_folder: Path) -> Reply:
    """Return what a report and the studio say of a run, and all that is drawn there, undrawn."""
    try:
        run = read_run(run_folder)
        problems = "\n".join([*run.problems.values(), *run.tasks.problems, run.model_problem])
        lines = prediction_lines(run)
    except BrimfulError as error:
        return Reply(error.exit_code, {}, str(error))
    except Exception:
        return Reply(None, {}, traceback.format_exc())
    answers = {line.partition("  ")[0]: line for line in lines}
    answers |= {name: repr(getattr(run, name)) for name in SHOWN}
    answers["side by side"] = repr(read_side_by_side(run_folder))
    view = as_json(run_view(run))
    answers |= {key: json.dumps(view[key]) for key in ("status", "lead", "headline", "cards")}
    # The list of recovery points shows sizes and times of files, whatever is in them.
    sections = {each["key"]: json.dumps(each["blocks"]) for each in view["sections"]}
    answers |= {key: told for key, told in sections.items() if key != "recovery"}
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
    """A run to be damaged, and what is asked of it. Subclasses are other folders.

    Attributes:
        root: Holds recipes and data, and a folder of its own for each run.
        name: KIND-finished or KIND-unfinished.
    """

    root: Path
    name: str

    @property
    def home(self) -> Path:
        """What is put back after every trial."""
        return self.root / self.name

    @property
    def folder(self) -> Path:
        """What is damaged."""
        return self.home / self.name

    @property
    def shown(self) -> str:
        """The folder as verbs are told it."""
        return self.folder.relative_to(self.root).as_posix()

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def is_finished(self) -> bool:
        return not self.name.endswith("unfinished")

    def make(self) -> None:
        """Train it, and evaluate it if it is a finished one."""
        if not self.is_finished:
            with killed_in_update(5):
                self.train()
            return
        _require_done(self.train())
        _require_done(ask("evaluate", self.shown))

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
        return hashes(self.home / (name or self.name), "model/*.safetensors")

    def look(self) -> dict[str, Reply]:
        """Ask the verbs that only read, and those that use a finished model."""
        replies = {
            "runs": self.listed(),
            "watch": self.watched(),
            "report": ask_report(self.folder),
        }
        if self.is_finished:
            replies["evaluate"] = ask("evaluate", self.shown, "--json")
            replies["use"] = self._use()
        return replies

    def listed(self) -> Reply:
        """Ask for the list of runs, of which the answers about this one and its members count."""
        top = self.home / self.kind if isinstance(self, Several) else self.folder
        reply = ask("runs", top.parent.relative_to(self.root).as_posix(), "--json")
        fields = [
            (*path.removeprefix("/").split("/", 1), value) for path, value in reply.answers.items()
        ]
        names = {number: value for number, field, value in fields if field == "name"}
        own = {
            f"{names[number]} {field}": _AGES.sub("", str(value))
            for number, field, value in fields
            if f"{names[number]}/".startswith(f"{top.name}/") and field not in OF_THE_FILES
        }
        return Reply(reply.exit_code, own, reply.printed)

    def watched(self) -> Reply:
        """Ask for the view of how it stands, without its ages."""
        reply = ask("watch", self.shown, "--once")
        view = _AGES.sub("", reply.answers[""])
        return Reply(reply.exit_code, {"": view}, reply.printed)

    def _use(self) -> Reply:
        if self.kind == "labels":
            labelled = self.root / "labelled.csv"
            labelled.unlink(missing_ok=True)
            reply = ask("predict", self.shown, "new.csv", "--output", str(labelled))
            text = labelled.read_text(encoding="utf-8") if labelled.exists() else ""
            return Reply(reply.exit_code, {"": text}, reply.printed)
        settings = ("--prompt", "red <mask>", "--tokens", "3", "--temperature=0")
        return ask("generate", self.shown, *settings)

    def answers(self) -> dict[str, Reply]:
        """Ask everything; an unfinished run is trained to its end, too."""
        return self.look() | ({} if self.is_finished else {"train": self.train()})

    def promised(self) -> dict[str, Reply]:
        """Return what else must be as in the undamaged run after a message's advice is followed."""
        return {"train": Reply(0, self.weights(), "")} if self.is_finished else {}

    def follow(self, advice: str) -> Mapping[str, Reply]:
        """Do what a message advises; return the replies that must be those of the undamaged run.
        They have the line, too, by which the advised command says that the best model is lost.
        """
        if re.search(r"the command that trained it|the same [`\w ]*command", advice):
            trained = self.train()
            if not self.is_finished:
                return {"train": trained}
            lost = "\n".join(LOST.findall(trained.printed))
            return {
                verb: replace(reply, printed=f"{lost}\n{reply.printed}")
                for verb, reply in self.users().items()
            }
        if "brimful evaluate" in advice:
            return self.users()
        if named := re.search(r"run\.name=([\w.-]+)", advice):
            return {"train": self.train(named[1])}
        return {"train": self.train("", "--fresh")} if "--fresh" in advice else {}

    def users(self) -> dict[str, Reply]:
        """Ask the verbs that use a finished model."""
        return {verb: each for verb, each in self.look().items() if verb in ("evaluate", "use")}


@contextlib.contextmanager
def kept(run: Run) -> Iterator[None]:
    """What happens to a run's folder inside is undone."""
    aside = run.root / "aside"
    shutil.copytree(run.home, aside)
    try:
        yield
    finally:
        shutil.rmtree(run.home)
        aside.rename(run.home)


class Ranks(Run):
    """A run on two ranks, each a process of its own."""

    @property
    def kind(self) -> str:
        return "documents"

    def make(self) -> None:
        """Train it, and evaluate it if it is a finished one; an unfinished one is killed."""
        self.train(last_update=0 if self.is_finished else 4)
        if self.is_finished:
            _require_done(ask("evaluate", self.shown))

    def train(self, name: str = "", *options: str, last_update: int = 0) -> Reply:
        """Run the recipe's command on every rank, which dies after an update of that number."""
        own = (f"run.name={name or self.name}", f"run.folder={self.name}", *options)
        every = () if self.is_finished else ("checkpoint.every=2",)
        words = ("train", f"recipes/{self.kind}.yaml", *own, *every)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        rates = calibrate.measure_matrix_rates(torch.device("cpu"), MATRIX_DTYPES)
        told = [(self.root, words, rank, port, rates, last_update) for rank in range(NUM_RANKS)]
        replies = _apart(NUM_RANKS).starmap(_of_rank, told, chunksize=1)
        codes = [reply.exit_code for reply in replies]
        printed = "\n".join(reply.printed for reply in replies)
        return Reply(None if None in codes else max(codes), self.weights(name), printed)


def _of_rank(
    root: Path,
    words: Sequence[str],
    rank: int,
    port: int,
    rates: dict[str, float],
    last_update: int,
) -> Reply:
    os.chdir(root)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "MASTER_PORT": str(port)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "BRIMFUL_CACHE": str(root / "cache")}
    torch.set_num_threads(1)
    with quickened(rates), killed_in_update(last_update + 1 if last_update else -1):
        return ask(*words)
    return Reply(0, {}, "")


class MirroredRun(Run):
    """A run of which only its mirror is left, from which the same command goes on."""

    @property
    def folder(self) -> Path:
        return self.home / "mirror" / self.name

    @property
    def kind(self) -> str:
        return "documents"

    def make(self) -> None:
        self.home.mkdir()
        super().make() if not self.is_finished else _require_done(self.train())
        shutil.rmtree(self.home / self.name)

    def train(self, name: str = "", *options: str) -> Reply:
        return super().train(name, f"run.mirror={self.name}/mirror", *options)

    def answers(self) -> dict[str, Reply]:
        """Ask what stands in the mirror, continue from it, and ask the run that came of it."""
        replies = {"runs": self.listed(), "watch": self.watched(), "train": self.train()}
        report = ask_report(self.home / self.name)
        untimed = {name: report.answers.get(name) for name in ("recipe", "data", "samples")}
        return replies | {"report": Reply(report.exit_code, untimed, report.printed)}

    def promised(self) -> dict[str, Reply]:
        return {}

    def follow(self, advice: str) -> Mapping[str, Reply]:
        """Do what a message advises; with a folder that is to be moved away, that first."""
        if moved := re.search(r"move (\S+) away", advice):
            shutil.rmtree(self.root / moved[1])
        fresh = () if moved or "--fresh" not in advice else ("--fresh",)
        return {"train": self.train("", *fresh)}


class Several(Run):
    """A study or a chain of rounds, with everything in its folder."""

    @property
    def folder(self) -> Path:
        return self.home / self.kind

    def make(self) -> None:
        _require_done(self.train())

    def train(self, name: str = "", *options: str) -> Reply:
        own = (f"run.name={name or self.kind}", f"run.folder={self.name}", *options)
        reply = ask("train", f"recipes/{self.kind}.yaml", *own)
        folder = self.home / (name or self.kind)
        made = hashes(folder, "*/model/*.safetensors") | hashes(folder, "samples-*/[st]*.jsonl")
        return Reply(reply.exit_code, made | self._scores(folder), reply.printed)

    def _scores(self, folder: Path) -> Answers:
        """Return what study.json says, without what was measured of time and memory."""
        try:
            facts = leaves(read_json(folder / "study.json"))
        except BrimfulError:
            return {}
        spent = re.compile(
            r"seconds|measured_s|tokens_per_s|_time|memory|samples_before|notes|fingerprint"
        )
        return {name: value for name, value in facts.items() if not spent.search(name)}

    def look(self) -> dict[str, Reply]:
        return {"runs": self.listed(), "watch": self.watched(), "compare": self._compared()}

    def watched(self) -> Reply:
        """Ask for the view, which is of the member that was written last: no answer of its own."""
        reply = super().watched()
        return Reply(reply.exit_code, {}, reply.printed)

    def _compared(self) -> Reply:
        """Ask for its runs side by side."""
        members = sorted(path.parent for path in self.folder.glob("*/model"))[:2]
        shown = (path.relative_to(self.root).as_posix() for path in members)
        return ask("compare", *shown, "--json")

    def answers(self) -> dict[str, Reply]:
        return self.look() | {"train": self.train()}

    def promised(self) -> dict[str, Reply]:
        return {}

    def follow(self, advice: str) -> Mapping[str, Reply]:
        named = re.search(r"run\.name=([\w.-]+)", advice)
        if moved := re.search(r"move (\S+) away", advice):
            shutil.rmtree(self.root / moved[1])
        if removed := re.search(r"(\S+) does not say .* Remove it", advice):
            (self.root / removed[1]).unlink()
        trained = self.train(named[1] if named and not moved else "")
        return {"train": trained} if named else {"train": trained, "compare": self._compared()}


class Drawing(Several):
    """The samples that a chain of rounds drew; an unfinished one holds the journal of half of them,
    of which a list says how long it is, whatever it is.
    """

    @property
    def kind(self) -> str:
        return "rounds"

    @property
    def folder(self) -> Path:
        return self.home / self.kind / "samples-1"

    def make(self) -> None:
        super().make()
        if not self.is_finished:
            journal = self.folder / "drawn.jsonl"
            lines = journal.read_bytes().splitlines(keepends=True)
            for path in self.folder.iterdir():
                path.unlink()
            journal.write_bytes(b"".join(lines[: len(lines) // 2]))

    def train(self, name: str = "", *options: str) -> Reply:
        """Draw what is missing."""
        own = (f"run.name={name or self.kind}", f"run.folder={self.name}", *options)
        reply = ask("sample", f"recipes/{self.kind}.yaml", *own)
        folder = self.home / (name or self.kind)
        return Reply(reply.exit_code, hashes(folder, "samples-*/[st]*.jsonl"), reply.printed)

    def look(self) -> dict[str, Reply]:
        return {"runs": self.listed()} if self.is_finished else {}

    def follow(self, advice: str) -> Mapping[str, Reply]:
        return {"train": super().follow(advice)["train"]}


class Base(Run):
    """The model that a run was tuned from; what the run answered before must not change."""

    @property
    def folder(self) -> Path:
        return self.home / "base"

    @property
    def kind(self) -> str:
        return "examples"

    @property
    def shown(self) -> str:
        return f"{self.name}/{self.name}"

    def make(self) -> None:
        self.home.mkdir()
        shutil.copytree(self.root / "base", self.folder)
        super().make()

    def train(self, name: str = "", *options: str) -> Reply:
        return super().train(name, f"model={self.name}/base", *options)

    def look(self) -> dict[str, Reply]:
        """Ask the verbs that use the base."""
        exported = ask("export", self.shown, "--merge", "--to", f"{self.name}/merged")
        merged = hashes(self.home, "merged/*.safetensors")
        return {
            "evaluate": ask("evaluate", self.shown, "--json"),
            "use": self._use(),
            "export": Reply(exported.exit_code, merged, exported.printed),
        }

    def answers(self) -> dict[str, Reply]:
        return self.look() if self.is_finished else {"train": self.train()}

    def promised(self) -> dict[str, Reply]:
        return {}

    def follow(self, advice: str) -> Mapping[str, Reply]:
        """Bring the base back that the run was tuned from."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.root / "base", self.folder)
        return self.answers()


class Cache(Run):
    """The cache folder, from which plans and trainings are quicker and no different."""

    KEPT_CONFIG = "somebody/small"
    OF_THE_PROCESS = re.compile(r"process|driver|peak_memory|interval|reason|device/source")

    @property
    def folder(self) -> Path:
        return self.home / "cache"

    def make(self) -> None:
        self.home.mkdir()
        for reply in self.answers().values():
            _require_done(reply)

    def answers(self) -> dict[str, Reply]:
        """Ask for plans and trainings in a process that knows nothing of the cache yet."""
        rates = calibrate.measure_matrix_rates(torch.device("cpu"), MATRIX_DTYPES)
        if not (self.folder / "configs").exists():
            _apart().apply(_keep_config, (self,))
        replies: dict[str, Reply] = _apart().apply(_of_cache, (self, rates))
        return replies

    def planned(self, kind: str, *options: str) -> Reply:
        """Plan a recipe; what a process takes by itself differs from one to the next."""
        reply = ask("plan", f"recipes/{kind}.yaml", *options, "--json")
        planned = {
            name: value
            for name, value in reply.answers.items()
            if not self.OF_THE_PROCESS.search(name)
        }
        return Reply(reply.exit_code, planned, reply.printed)

    def promised(self) -> dict[str, Reply]:
        """Return what is said when the config is kept again and all is asked a second time: what the
        first time left in the cache may change plans.
        """
        with kept(self):
            self.answers()
            return self._again()

    def _again(self) -> dict[str, Reply]:
        _apart().apply(_keep_config, (self,))
        return {f"{verb}, again": reply for verb, reply in self.answers().items()}

    def follow(self, advice: str) -> Mapping[str, Reply]:
        """Keep a config again."""
        return self._again() if "models add" in advice else {}


def _keep_config(cache: Cache) -> None:
    """Keep a config, in a process of its own, as a user does: what it imports is no plan's."""
    os.chdir(cache.root)
    os.environ["BRIMFUL_CACHE"] = str(cache.folder)
    ask("models", "add", "base", "--name", cache.KEPT_CONFIG)


def _of_cache(cache: Cache, rates: dict[str, float]) -> dict[str, Reply]:
    os.chdir(cache.root)
    os.environ["BRIMFUL_CACHE"] = str(cache.folder)
    with quickened(rates):
        replies = {
            "plan": cache.planned("documents"),
            "plan a kept config": cache.planned("examples", f"model={cache.KEPT_CONFIG}"),
        }
        own = ("run.name=documents", f"run.folder={cache.name}/runs", "--fresh")
        trained = ask("train", "recipes/documents.yaml", *own)
        weights = hashes(cache.home / "runs" / "documents", "model/*.safetensors")
        replies["train"] = Reply(trained.exit_code, weights, trained.printed)
        shutil.rmtree(cache.home / "runs")
    return replies


@functools.cache
def _apart(processes: int = 1) -> Any:
    """Return processes for one task each, forked from one that has imported, and read no cache."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context.Pool(processes, maxtasksperchild=1)


SUBJECTS: dict[str, type[Run]] = {
    **dict.fromkeys(make_old_runs.RECIPES, Run),
    "pairs": Run,
    "rewards": Run,
    "ranks": Ranks,
    "base": Base,
    "cache": Cache,
    "mirror": MirroredRun,
    "study": Several,
    "rounds": Several,
    "drawing": Drawing,
}
"""What is damaged, by the first word of its name."""
ONLY_FINISHED = ("study", "rounds", "cache")
"""The members of studies are runs, which are damaged unfinished by themselves."""


def hashes(folder: Path, pattern: str) -> Answers:
    """Return the SHA-256 of files of a folder by their path in it."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(pattern))
    }


def _require_done(reply: Reply) -> None:
    if reply.exit_code:
        raise SystemExit(reply.printed)


def prepare(root: Path, only: str = "") -> list[Run]:
    """Go to a folder, make everything that is damaged in it if it is new, each alone in a folder of
    its own, and return it; `only` is a pattern of names.
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
        rows = {"questions": QUESTIONS, "pairs": PAIRS, "rewarded": REWARDED}
        for name, text in rows.items():
            (root / "data" / f"{name}.jsonl").write_text(text, encoding="utf-8")
        for kind, recipe in RECIPES.items():
            (root / "recipes" / f"{kind}.yaml").write_text(recipe, encoding="utf-8")
        (root / "new.csv").write_text("text\nwin cash now\nred cat sees dog\n", encoding="utf-8")
    every = [
        subject(root, f"{word}-{state}")
        for word, subject in SUBJECTS.items()
        for state in ("finished", "unfinished")
        if state == "finished" or word not in ONLY_FINISHED
    ]
    runs = [run for run in every if re.search(only, run.name)]
    for run in runs:
        if not run.home.exists():
            run.make()
            for path in run.home.rglob("*"):  # nobody writes it any more, by its age
                os.utime(path, (time.time() - A_DAY_S,) * 2)
    return runs
