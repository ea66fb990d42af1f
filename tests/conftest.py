"""What every test shares: one thread, own cache and runs folders, snapshots of messages, a tiny corpus
and recipe.
"""

import ctypes
import functools
import gc
import itertools
import json
import math
import os
import platform
import random
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import before_torch  # noqa: F401 - before torch, which the next ones import
import psutil
import pytest
import recorded_steps
import torch
import warm
from fixture_types import Captured, Make, MakeRecipe
from json_lines import write_rows
from long_cases import pytest_pycollect_makeitem  # noqa: F401 - a hook
from named_tests import is_named
from syrupy.assertion import SnapshotAssertion

from brimful.base.env import shared_data_folder
from brimful.base.types import JsonDict
from brimful.hardware import calibrate
from brimful.recipe import load

TINY = """
name: tiny
sequence_length: 32
batch: {sequences: 8}
training: {steps: 12}
model: {architecture: llama, layers: 2, heads: 2, width: 32}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: CORPUS, document_start: "^# ", validation: 0.2}
optimizer: {learning_rate: 1e-2, warmup: 3}
evaluation: {every: 6}
sample: {tokens: 8}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""

REPOSITORY = Path(__file__).resolve().parent.parent
VARIABLE_PARTS = (
    (r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)?)?(?![\w-])", "TIME"),
    (r"\b\d+\.\d+\.\d+\+(?:cpu|cu\d+)(?!\w)", "VERSION"),
    (rf"\bPython {re.escape(platform.python_version())}(?![\w.])", "Python VERSION"),
    (r"\b[\d.,]+ ?(?:[KMGT]i?B|bytes) free\b", "MEMORY free"),
    (r"\b0x[0-9a-f]{6,}\b", "ADDRESS"),
    (r"\.[0-9a-f]{32}\.tmp\b", ".ID.tmp"),
)
"""What a message may hold that differs from run to run or from machine to machine."""


LONG_FILES = (
    "notebooks/test_executed.py",
    "browser/test_studio.py",
    "rehearsal/test_tracer.py",
    "rehearsal/test_canaries.py",
    "test_documented_commands.py",
    "test_tuning.py",
    "rehearsal/test_ranks.py",
    "chains/test_ranks.py",
    "training/test_method.py",
    "kinds/test_pairs.py",
    "prove/test_survival.py",
    "chains/test_launching.py",
    "browser/test_report.py",
    "training/test_session.py",
    "model/test_packed_attention.py",
    "chains/test_parallel_study.py",
    "browser/test_atlas.py",
    "notebooks/test_kernels.py",
    "rehearsal/test_exact.py",
    "model/test_catalog.py",
    "chains/test_rounds.py",
    "kinds/test_labels.py",
    "cli/test_verbs.py",
    "kinds/test_rewarded.py",
    "mirror/test_opening.py",
)
"""Run first, so that no worker is left with one of them at the end, while the others wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {REPOSITORY / "tests" / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if is_named(item.path, item.name.partition("[")[0]):
            item.add_marker("security")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store-steps",
        action="store_true",
        help="store in the repository the traces that these tests recorded",
    )


gc.disable()
"""Until all tests are collected: half of that time went into looking for garbage."""


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture
def stable_text(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """`stable_text(message)` is the message with temporary folders, times, versions, process and
    host names, and free memory replaced by placeholders.
    """
    temporary = re.escape(str(tmp_path_factory.getbasetemp()))
    replacements = (
        (re.escape(str(tmp_path)), "TMP"),
        (rf"{temporary}/[^/\s'\"]+", "TMP"),
        (re.escape(sys.prefix), "ENVIRONMENT"),  # which may lie in the repository
        (re.escape(str(REPOSITORY)), "REPOSITORY"),
        (rf"\b{re.escape(socket.gethostname())}\b", "HOST"),
        (rf"\bprocess {os.getpid()}\b", "process PID"),
        *VARIABLE_PARTS,
    )

    def replace(text: str) -> str:
        for pattern, placeholder in replacements:
            text = re.sub(pattern, placeholder, text)
        return text

    return replace


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion, stable_text: Callable[[str], str]) -> SnapshotAssertion:
    """`assert text == snapshot` compares a text, or lists and dictionaries of texts, with what is
    stored in `__snapshots__` beside the test; `make snapshots` stores it anew.
    """

    def stable(*, data: Any, path: Any) -> Any:
        return stable_text(data) if isinstance(data, str) else data

    return snapshot.with_defaults(matcher=stable)


@pytest.fixture
def said(capsys: Captured) -> Callable[..., tuple[int, str, str]]:
    """`said("models", "list")` gives exit code, standard output and standard error of a command
    line, which runs in this process.
    """

    def run(*arguments: str) -> tuple[int, str, str]:
        from brimful import cli

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["brimful", *arguments])
            with pytest.raises(SystemExit) as ending:
                cli.main()
        captured = capsys.readouterr()
        return int(ending.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def refuses(
    snapshot: SnapshotAssertion,
) -> Callable[..., AbstractContextManager[pytest.ExceptionInfo[BaseException]]]:
    """`with refuses(RequestError):` passes if the block raises that error, with the stored message.

    `refuses(RequestError, names=["row 2"])` asks in addition that the message names these values,
    so that storing the message anew cannot lose them.
    """

    @contextmanager
    def expect(
        *errors: type[BaseException], names: Sequence[str] = ()
    ) -> Iterator[pytest.ExceptionInfo[BaseException]]:
        with pytest.raises(errors) as caught:
            yield caught
        message = str(caught.value)
        assert [name for name in names if name not in message] == []
        assert message == snapshot

    return expect


@pytest.fixture(scope="session")
def kept_traces(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Traces of steps, which are named by all that decides them: most come from the repository, and
    another step that several tests plan is traced once, whichever process needs it first.
    """
    base = tmp_path_factory.getbasetemp()
    # pytest-xdist gives every process its own base
    folder = _folder_of_traces(base.parent if hasattr(request.config, "workerinput") else base)
    recorded_steps.fill(folder)
    return folder


def _folder_of_traces(base: Path) -> Path:
    return base / "kept-traces"


def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if session.config.getoption("store_steps", default=False) and not is_worker:
        recorded_steps.store(_traces_of(session.config))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    count = len(dict(recorded_steps.found(_traces_of(config), recorded_steps.read_archive())))
    if count:
        terminalreporter.write_line(f"steps traced that are not stored: {count} (`make steps`)")


def _traces_of(config: pytest.Config) -> Path:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return _folder_of_traces(factory.getbasetemp())


@pytest.fixture(scope="session")
def new_cache(kept_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """`new_cache()` is another folder for BRIMFUL_CACHE, which holds nothing but the kept
    traces.
    """
    root, numbers = tmp_path_factory.mktemp("caches"), itertools.count()

    def make() -> str:
        folder = root / str(next(numbers))
        folder.mkdir()
        (folder / "traces").symlink_to(kept_traces, target_is_directory=True)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def folders_of_name() -> Counter[str]:
    """How many folders of tests have a name already."""
    return Counter()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    folders_of_name: Counter[str],
) -> Path:
    """An empty folder for this test. pytest's own fixture also searches all folders for the next
    number and renews a link to the newest one: milliseconds, as long as a small test takes.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{folders_of_name[name]}"
    folders_of_name[name] += 1
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def unused_caches() -> list[str]:
    """Folders for BRIMFUL_CACHE that a test was given and left as they were."""
    return []


@pytest.fixture(autouse=True)
def _quiet_machine(
    tmp_path: Path,
    new_cache: Callable[[], str],
    unused_caches: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    torch.set_num_threads(1)
    # Weights that a test makes without a seed are the same on each run. `torch.manual_seed` would
    # write down its caller for each kind of device that may come: a millisecond.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    cache = unused_caches.pop() if unused_caches else new_cache()
    monkeypatch.setenv("BRIMFUL_CACHE", cache)
    monkeypatch.setenv("BRIMFUL_RUNS", str(tmp_path / "runs"))
    yield
    if os.path.isdir(cache) and os.listdir(cache) == ["traces"]:
        unused_caches.append(cache)


@pytest.fixture(autouse=True, scope="module")
def _quick_collection() -> Iterator[None]:
    """Garbage is looked for among what a file's tests make, not among all that was imported: a
    third of a second less each time a run ends.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """What a test that searched all for garbage leaves, such as imported libraries and kept traces,
    is not searched again by the tests after it: a run searches four times.
    """
    searches = gc.get_stats()[-1]["collections"]
    outcome = yield
    if gc.get_stats()[-1]["collections"] > searches:
        gc.collect()
        gc.freeze()
    return outcome  # type: ignore[return-value]


@pytest.fixture(autouse=True, scope="session")
def _disks_are_not_waited_for() -> Iterator[None]:
    """Nothing here loses power, so files are not forced to the disk: a run does that 45 times.
    On other file systems, such as those that tests mount, it is done.
    """
    real, usual = os.fsync, os.stat(tempfile.gettempdir()).st_dev

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_dev != usual:
            real(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(autouse=True, scope="session")
def _measured_once() -> Iterator[None]:
    """How fast this machine multiplies is measured once per process: six tenths of a second less
    for every plan for it.
    """
    real = calibrate.measure_matrix_rates

    @functools.cache
    def measured(device: torch.device, dtypes: tuple[str, ...], _threads: int) -> dict[str, float]:
        return real(device, dtypes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            calibrate,
            "measure_matrix_rates",
            lambda device, dtypes: dict(measured(device, tuple(dtypes), torch.get_num_threads())),
        )
        yield


def _without_others() -> dict[str, str]:
    """The environment in which a Python process reaches no other machine, without what libraries
    set in this process.
    """
    changed = warm.changed(os.environ)
    kept = {name: value for name, value in os.environ.items() if name not in changed}
    return (
        kept
        | {name: warm.STARTED_WITH[name] for name in changed & warm.STARTED_WITH.keys()}
        | {
            "PYTHONPATH": f"{REPOSITORY / 'tests' / 'offline'}:{REPOSITORY / 'src'}",
            "HF_HUB_OFFLINE": "1",
        }
    )


@pytest.fixture
def contacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Python process that a test starts reaches another machine; the file names those that were
    tried. Nor does it inherit what libraries set in this process while other tests ran.
    """
    path = tmp_path / "contacts.txt"
    path.write_text("")
    given = _without_others() | {
        "BRIMFUL_TEST_CONTACTS": str(path),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    for name in os.environ.keys() - given.keys():
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture(scope="session")
def keeps_warm(kept_traces: Path) -> Iterator[Callable[[], Path]]:
    """Starts the server of warm processes, one for all processes of the session; returns its
    socket.
    """
    path, connections = kept_traces.parent / "warm", ExitStack()

    @functools.cache
    def join() -> Path:
        connections.enter_context(warm.join(path, _without_others()))
        return path

    with connections:
        yield join


@pytest.fixture(scope="session")
def warm_environment(keeps_warm: Callable[[], Path]) -> Callable[[], dict[str, str]]:
    """`warm_environment()` is that of a process whose commands of brimful's are forked; see
    `warm_processes`.
    """
    return lambda: _without_others() | {warm.VARIABLE: str(keeps_warm())}


@pytest.fixture
def warm_processes(
    contacts: Path, keeps_warm: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of brimful's in processes that a test starts are forked from one that has loaded
    torch and transformers: five seconds of CPU time less for each (`offline/warm.py`).
    """
    monkeypatch.setenv(warm.VARIABLE, str(keeps_warm()))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text file of 60 short documents with some structure to learn."""
    words = ["red", "green", "blue", "cat", "dog", "sees", "likes", "the", "a", "tree"]
    drawn = random.Random(0)
    documents = [
        f"# story {number}\n" + " ".join(drawn.choices(words, k=60)) + "\n" for number in range(60)
    ]
    path = tmp_path / "corpus.txt"
    path.write_text("".join(documents))
    return path


_HAVE_AND_DROP = (0x20080522, {1, 2})
"""Version of the call capset, and the numbers of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@pytest.fixture
def permissions_hold() -> Iterator[None]:
    """Permissions of files hold also where the tests run as root: this thread gives up, until the
    test ends, the right to pass over them.
    """
    version, dropped = _HAVE_AND_DROP
    header = (ctypes.c_uint32 * 2)(version, 0)
    have = (ctypes.c_uint32 * 6)()
    library = ctypes.CDLL(None)
    assert library.capget(header, have) == 0
    fewer = (ctypes.c_uint32 * 6)(*have)
    fewer[0] &= ~sum(1 << number for number in dropped)
    assert library.capset(header, fewer) == 0
    yield
    assert library.capset(header, have) == 0


@pytest.fixture
def recipe_file(corpus: Path, tmp_path: Path) -> Path:
    """The tiny recipe as a file, for commands."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("CORPUS", str(corpus)))
    return path


@pytest.fixture
def tiny(recipe_file: Path) -> MakeRecipe:
    """`tiny("key=value", ...)` gives the tiny recipe with overrides."""
    return lambda *overrides: load(str(recipe_file), overrides)


@pytest.fixture
def llama_values() -> JsonDict:
    """The config.json of a tiny Llama of eight blocks, enough for its trace to repeat one."""
    return {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }


@pytest.fixture
def shared_data() -> Path:
    folder = shared_data_folder()
    if folder is None:
        pytest.skip("no real data: set BRIMFUL_DATA to the folder that holds it")
    return folder.resolve()


TUNING = """
name: tuned
method: sft
model: BASE
adapter: {rank: 4}
sequence_length: 64
batch: {sequences: 4}
training: {steps: 8}
data: {path: EXAMPLES, validation: 0.2, long_documents: drop, duplicates: drop}
optimizer: {learning_rate: 1e-2, warmup: 2}
evaluation: {every: 4, max_examples: 6}
sample: {prompt: "Say red twice.", tokens: 8, temperature: 0.0}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """A tiny published model in a folder: random weights and a byte-level tokenizer of 280
    entries.
    """
    from small_models import write_base_model

    return write_base_model(tmp_path / "base")


@pytest.fixture
def examples_file(tmp_path: Path) -> Path:
    """Sixty instructions with answers, of many lengths."""
    path, drawn = tmp_path / "examples.jsonl", random.Random(1)
    rows = []
    for number in range(60):
        color, times = drawn.choice(["red", "green", "blue"]), drawn.randint(1, 5)
        rows.append(
            {
                "instruction": f"Say {color} {times} times, number {number}.",
                "output": " ".join([color] * times),
            }
        )
    return write_rows(path, rows)


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    """Fifty pairs of answers of many lengths, of which the chosen one says the right colour."""
    drawn, path = random.Random(1), tmp_path / "pairs.jsonl"
    rows = []
    for number in range(50):
        colour, other = drawn.sample(["red", "green", "blue"], 2)
        rows.append(
            {
                "prompt": f"Say {colour}, number {number}: ",
                "chosen": " ".join([colour] * drawn.randint(1, 4)),
                "rejected": " ".join([other] * drawn.randint(1, 4)),
            }
        )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def tuning_file(base_model: Path, examples_file: Path, tmp_path: Path) -> Path:
    """A recipe that tunes the tiny base with adapters, as a file, for commands."""
    path = tmp_path / "tuned.yaml"
    path.write_text(TUNING.replace("BASE", str(base_model)).replace("EXAMPLES", str(examples_file)))
    return path


@pytest.fixture
def tuning(tuning_file: Path) -> MakeRecipe:
    """`tuning("key=value", ...)` gives the tuning recipe with overrides."""
    return lambda *overrides: load(str(tuning_file), overrides)


@pytest.fixture
def continuing(base_model: Path, corpus: Path, tmp_path: Path) -> MakeRecipe:
    """`continuing("key=value", ...)` gives a recipe that goes on with pre-training the tiny base,
    with adapters.
    """
    text = TUNING.replace("name: tuned\nmethod: sft", "name: continued\nmethod: pretrain")
    text = text.replace("BASE", str(base_model)).replace("EXAMPLES", str(corpus))
    text = text.replace("long_documents: drop, duplicates: drop", "document_start: '^# story'")
    path = tmp_path / "continued.yaml"
    path.write_text(text)
    return lambda *overrides: load(str(path), overrides)


RANKS_LAST_S = 300.0
"""Longer, and the ranks of a test are ended: it would wait for ever."""


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """`ranks(2, act)` runs `act(world)` in two forked processes that meet over gloo, and returns what
    each returned: JSON, or the name and the message of the error that it raised, or the number of
    the signal that ended it, or ["exit", its code]. One that is halted is killed once another has
    ended, as a launcher does. `ranks(4, act, machines=2)`: as if two of them were on each of two.
    """
    meetings = itertools.count()

    def run(size: int, act: Callable[[Any], Any], machines: int = 1) -> list[Any]:
        folder = tmp_path / f"ranks-{next(meetings)}"
        folder.mkdir()
        children = [
            _fork(lambda rank=rank: _rank(folder, rank, size, act, machines))
            for rank in range(size)
        ]
        until_s = time.monotonic() + RANKS_LAST_S
        ends: list[int | None] = [None] * size
        while None in ends:
            for rank, child in enumerate(children):
                if ends[rank] is None:
                    ended, status = os.waitpid(child, os.WNOHANG)
                    ends[rank] = status if ended else None
            is_late = time.monotonic() > until_s
            for child, end in zip(children, ends, strict=True):
                is_left = any(other is not None for other in ends) and _is_halted(child)
                if end is None and (is_late or is_left):
                    os.kill(child, signal.SIGKILL)
            until_s = math.inf if is_late else until_s
            time.sleep(0.01)
        return [_end(folder / str(rank), status or 0) for rank, status in enumerate(ends)]

    return run


def _is_halted(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _end(result: Path, status: int) -> Any:
    """How a rank ended, as `ranks` says."""
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    return ["exit", code] if code else json.loads(result.read_text())


def _fork(act: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        gc.freeze()  # what this process has is not searched, and not copied by searching
        try:
            act()
        finally:
            os._exit(0)
    return child


def _rank(folder: Path, rank: int, size: int, act: Callable[[Any], Any], machines: int) -> None:
    import torch.distributed as dist

    from brimful.training.world import join

    try:
        store = dist.FileStore(str(folder / "meeting"), size)
        local = rank % (size // machines), size // machines
        result = act(join(rank, size, local=local, store=store))
    except BaseException as error:
        result = [type(error).__name__, str(error)]
    (folder / str(rank)).write_text(json.dumps(result))


WORDS = (
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "sees",
    "likes",
    "tree",
    "house",
    "river",
    "win",
    "cash",
    "prize",
    "now",
    "call",
    "free",
)
LABELS = """
name: sorted
method: classify
model: MODEL
sequence_length: 24
batch: {sequences: 8}
training: {steps: 30}
data: {path: DATA, validation: 0.2, test: 0.2}
labels: {class_weights: balanced}
optimizer: {learning_rate: 5.0e-3, warmup: 3, schedule: linear}
evaluation: {every: 10}
plan: {device: cpu, precision: fp32, threads: 1}
"""


@pytest.fixture(params=["bert"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A published model of two blocks that knows `WORDS`: an encoder, or a causal one without
    padding token in its config.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    folder, sizes = (
        tmp_path / "published",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 4 + len(WORDS),
        },
    )
    known = {"intermediate_size": 64, "max_position_embeddings": 32, **sizes}
    is_causal = request.param == "llama"
    model = (
        LlamaForCausalLM(LlamaConfig(**known, bos_token_id=1, eos_token_id=2))
        if is_causal
        else BertForMaskedLM(BertConfig(**known))
    )
    model.save_pretrained(folder)
    vocabulary = {
        word: number for number, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


@pytest.fixture
def texts() -> Callable[..., list[tuple[str, str]]]:
    """`texts(count, seed=0)`: texts with labels; every fifth asks for something, words decide, and
    a few are there by accident.
    """

    def make(count: int, seed: int = 0) -> list[tuple[str, str]]:
        drawn = random.Random(seed)
        pools = [WORDS[10:] if number % 5 == 0 else WORDS[:10] for number in range(count)]
        words = [
            [*drawn.choices(pool, k=drawn.randint(3, 12)), drawn.choice(WORDS)] for pool in pools
        ]
        return [
            (" ".join(each), "spam" if number % 5 == 0 else "ham")
            for number, each in enumerate(words)
        ]

    return make


@pytest.fixture
def labels_recipe_file(
    encoder: Path, texts: Callable[..., list[tuple[str, str]]], tmp_path: Path
) -> Path:
    """The recipe of a tiny classifier as a file, for commands; 200 texts."""
    data, path = tmp_path / "texts.csv", tmp_path / "sorted.yaml"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in texts(200)))
    path.write_text(LABELS.replace("MODEL", str(encoder)).replace("DATA", str(data)))
    return path


@pytest.fixture
def few_operators(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A calibration measures the smallest operator of each class, and little of everything else.
    Returns what makes these operators for a device and types of numbers.
    """
    from brimful.hardware.operators import Case, cases

    def few(device: torch.device, dtypes: tuple[str, ...]) -> list[Case]:
        smallest: dict[tuple[str, str], Case] = {}
        for case in sorted(cases(device, dtypes), key=lambda case: case.num_bytes):
            smallest.setdefault((case.class_name, case.dtype), case)
        return list(smallest.values())

    monkeypatch.setattr("brimful.hardware.calibrate.cases", few)
    monkeypatch.setattr("brimful.hardware.calibrate.DISK_BYTES", 1 << 16)
    monkeypatch.setattr("brimful.hardware.calibrate.PARALLEL_S", 0.001)
    return few
