"""Does brimful work where a user installs it? Fresh environments without `constraints.txt`, in each
what a user does, in small settings. Prints a table, and ends with 1 where a step failed.

    python benchmarks/environments.py [--only oldest ...] [--python PATH ...] [--keep FOLDER]
                                      [--record]

The wheel is built from an sdist of the checkout. An environment has one of the Pythons that
`pyproject.toml` names and this machine has, and the newest versions that the declared ranges allow or
the oldest. One more is installed by pip, which also follows what this machine tells it. What comes
from the package index, some gigabytes for each version of torch, lies beside the environments and is
deleted with them, unless UV_CACHE_DIR names another place. Without an index nothing is tried, and
that is said.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from brimful.base.env import cache_folder
from record import RECORDS, write_record
from terminal import Outcome, Step, take

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
UV = (sys.executable, "-m", "uv", "--quiet", "--no-progress")
RESOLUTIONS = {"newest": "highest", "oldest": "lowest-direct"}
"""What uv calls the versions of an environment."""
OUT_OF_REACH = re.compile(
    r"failed to (fetch|download(?! and build))|error sending request|timed out|no space left"
    r"|connection (broken|refused|reset)",
    re.IGNORECASE,
)
"""What an installer says when the fault is not in what is installed."""
FEW = (
    "training.epochs=null training.tokens=null training.steps=4 optimizer.warmup=1 sample.tokens=8"
)
TEXT = f"tokenizer.vocabulary=280 sequence_length=256 batch.sequences=4 {FEW}"
TUNING = f"{FEW} sample.prompt=Say batch.sequences=4 sequence_length=256 evaluation.max_examples=4"
WORDS = ("the", "cat", "sees", "a", "tree", "and", "dog", "likes", "rain", "while", "we", "walk")
SPAM = ("win", "cash", "prize", "now", "free", "call")
GPT, ENCODER = "runs/gpt/model", "runs/encoder/model"
STEPS = {
    "doctor": Step("brimful doctor"),
    "pretrain": Step("brimful run tiny-gpt data.path=corpus.txt run.name=gpt", TEXT),
    "generate": Step("brimful generate gpt --prompt 'the cat' --tokens 8"),
    "plan": Step(f"brimful plan lora model={GPT} data.path=chats.jsonl --on T4", TUNING),
    "lora": Step(f"brimful train lora model={GPT} data.path=chats.jsonl", TUNING),
    "evaluate": Step("brimful evaluate lora", says=("Perplexity",)),
    "export": Step("brimful export lora --merge"),
    "encoder": Step(
        "brimful train tiny-encoder data.path=corpus.txt run.name=encoder",
        f"{FEW} tokenizer.vocabulary=280",
    ),
    "classify": Step(
        f"brimful run moderation-offline data.path=SMSSpamCollection model={ENCODER}",
        f"labels.pretrain=as_written {FEW} batch.sequences=4 sequence_length=48",
    ),
    "predict": Step("brimful predict moderation-offline mails.csv", says=("spam|ham",)),
    "report": Step("brimful report gpt"),
}
"""What is done in each environment, in this order: a step reads what those before it made."""


@dataclass(frozen=True)
class Environment:
    """An environment to make.

    Attributes:
        versions: newest; oldest, of what brimful itself asks for; or pip: what pip chooses here.
        python: `3.11`.
        interpreter: Its program on this machine.
    """

    versions: str
    python: str
    interpreter: Path

    @property
    def name(self) -> str:
        return f"{self.versions}-{self.python}"


@dataclass
class Tried:
    """What came of an environment.

    Attributes:
        packages: Versions by name, as installed.
        install_s: Seconds that installing took, downloads included.
        steps: By name.
        out_of_reach: What could not be fetched; nothing was tried then.
    """

    name: str
    install_s: float = 0.0
    packages: dict[str, str] = field(default_factory=dict)
    steps: dict[str, Outcome] = field(default_factory=dict)
    out_of_reach: str = ""


def interpreters(given: Iterable[Path]) -> dict[str, Path]:
    """Return the interpreters to use by their version; without given ones those that
    `pyproject.toml` names and that are on the path or among pyenv's.
    """
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = re.findall(r"Python :: (\d\.\d+)", PYPROJECT.read_text(encoding="utf-8"))
    for path in given or [
        candidate
        for version in named
        for candidate in (
            *pyenv.glob(f"versions/{version}.*/bin/python"),
            Path(shutil.which(f"python{version}") or "absent"),
        )
    ]:
        if version := version_of(path):
            found.setdefault(version, path)
    return found


def version_of(interpreter: Path) -> str:
    """Return `3.11`; empty where this is no program that runs."""
    says = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([interpreter, "-c", says], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def environments(pythons: Mapping[str, Path], only: Iterable[str]) -> Iterator[Environment]:
    """Yield what is to be made: for each Python the newest and the oldest, one by pip."""
    every = [
        *(Environment(versions, *each) for each in pythons.items() for versions in RESOLUTIONS),
        *(Environment("pip", *each) for each in list(pythons.items())[:1]),
    ]
    yield from (each for each in every if any(word in each.name for word in only))


def build(folder: Path) -> Path:
    """Build an sdist of the checkout and the wheel from it, and return the wheel.

    Raises:
        CalledProcessError: it cannot be built, or what builds it cannot be had.
    """
    _said(*UV, "build", "--out-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


def install(environment: Environment, wheel: Path, folder: Path) -> dict[str, str]:
    """Make the environment in `folder`, and return the versions by package.

    Raises:
        CalledProcessError: not every package can be had, or they do not go together.
    """
    python = str(folder / "bin" / "python")
    if environment.versions == "pip":
        _said(environment.interpreter, "-m", "venv", folder)
        _said(python, "-m", "pip", "install", "--quiet", wheel)
    else:
        _said(*UV, "venv", "--python", environment.interpreter, folder)
        # Alone, since the needs of a wheel are none of ours to uv: it would take the newest.
        versions = folder / "versions.txt"
        resolution = ("--resolution", RESOLUTIONS[environment.versions])
        _said(*UV, "pip", "compile", PYPROJECT, *resolution, "--python", python, "-o", versions)
        _said(*UV, "pip", "install", "--python", python, "--constraint", versions, wheel)
    frozen = _said(*UV, "pip", "freeze", "--python", python)
    return dict(line.split("==") for line in frozen.splitlines() if "==" in line)


def out_of_reach(error: subprocess.CalledProcessError) -> bool:
    """Return whether what an installer complains of is no fault of what it was to install."""
    return bool(OUT_OF_REACH.search(error.stderr))


def _said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def write_data(folder: Path) -> None:
    """Write what the steps read: a text, chats, labelled messages, and messages to sort."""
    drawn = random.Random(2)

    def words(count: int, of: Sequence[str] = WORDS) -> str:
        return " ".join(drawn.choices(of, k=count))

    (folder / "corpus.txt").write_text("".join(f"{words(12)}.\n" for _ in range(2400)))
    answers = [words(3) for _ in range(60)]
    chats = [
        [
            {"role": "user", "content": f"Say these words: {answer}"},
            {"role": "assistant", "content": answer},
        ]
        for answer in answers
    ]
    lines = [json.dumps({"messages": chat}) for chat in chats]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n")
    messages = [
        ("ham", words(8)) if number % 3 else ("spam", words(8, SPAM)) for number in range(200)
    ]
    labelled = [
        f"{label}\t{message} {number}\n" for number, (label, message) in enumerate(messages)
    ]
    (folder / "SMSSpamCollection").write_text("".join(labelled))
    mails = [f"{number},{message}\n" for number, (_, message) in enumerate(messages[:9])]
    (folder / "mails.csv").write_text("id,text\n" + "".join(mails))


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


def walk(environment: Environment, wheel: Path, folder: Path) -> Tried:
    """Make the environment and take the steps in a folder of its own; print each."""
    tried, home = Tried(environment.name), folder / environment.name
    started_s = time.perf_counter()
    try:
        tried.packages = install(environment, wheel, folder / f"{environment.name}.venv")
    except subprocess.CalledProcessError as error:
        if out_of_reach(error):
            tried.out_of_reach = error.stderr.strip()
        else:
            tried.steps["install"] = Outcome("install", 0.0, 0.0, 0.0, [error.stderr.strip()])
        print(f"{environment.name} cannot be made: {error.stderr.strip()}", flush=True)
        return tried
    tried.install_s = round(time.perf_counter() - started_s, 1)
    print(f"{tried.install_s:6.1f} s  {environment.name}: installed", flush=True)
    home.mkdir()
    write_data(home)
    own = {
        name: value for name, value in environment_in(home).items() if not name.startswith("PYTHON")
    }
    own["PATH"] = f"{folder / f'{environment.name}.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for name, step in STEPS.items():
        tried.steps[name], shown = take(step, home, own)
        problems = tried.steps[name].problems
        mark = f"FAILED: {'; '.join(problems)}\n{shown.strip()}" if problems else "ok"
        print(f"{tried.steps[name].seconds:6.1f} s  {tried.name} {name}: {mark}", flush=True)
    return tried


def table(tried: Iterable[Tried]) -> str:
    """Markdown: environments by steps, with the seconds that each took."""
    columns = ("environment", "install", *STEPS)
    rows = [columns, ["---"] * len(columns)]
    for each in tried:
        took = [_cell(each.steps.get(name)) for name in STEPS]
        failed = _cell(each.steps.get("install"))
        rows.append([each.name, f"{each.install_s:.0f} s" if each.packages else failed, *took])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not tried"
    return "FAILED" if outcome.problems else f"{outcome.seconds:.0f} s"


def record(wheel: Path, tried: Iterable[Tried]) -> Path:
    """Write the record; of environments that were not tried now it keeps what it has."""
    path = RECORDS / "environments.json"
    stored = json.loads(path.read_text())["tried"] if path.exists() else []
    by_name = {each["name"]: each for each in [*stored, *map(asdict, tried)]}
    values = {
        "wheel_bytes": wheel.stat().st_size,
        "tried": [by_name[name] for name in sorted(by_name)],
    }
    return write_record("environments", values)


def main() -> None:
    """Make the environments one after the other, walk in each, and say what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="words of names: oldest, 3.11")
    parser.add_argument("--python", type=Path, nargs="*", default=[], help="interpreters to use")
    parser.add_argument("--keep", type=Path, help="a new folder that keeps what was made")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records/")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (chosen.keep or Path(scratch)).resolve()
        os.environ.setdefault("UV_CACHE_DIR", str(folder / "cache"))
        os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
        try:
            wheel = build(folder / "dist")
        except subprocess.CalledProcessError as error:
            print(f"no environment was tried: {error.stderr.strip()}")
            raise SystemExit(not out_of_reach(error)) from None
        tried = []
        for environment in environments(interpreters(chosen.python), chosen.only):
            tried.append(walk(environment, wheel, folder))
            if not chosen.keep:
                shutil.rmtree(folder / f"{environment.name}.venv", ignore_errors=True)
        if chosen.record:
            print(record(wheel, tried))
    print(f"\n{table(tried)}\n")
    outcomes = [outcome for each in tried for outcome in each.steps.values()]
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    if outcomes:
        print(f"{len(outcomes) - failed} passed, {failed} failed")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
