"""The only reader of the environment, and the only writer of what started processes get."""

import getpass
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from brimful.base.types import Texts


def cache_folder() -> Path:
    """Where derived files that may be deleted live: `BRIMFUL_CACHE`, else the user's cache
    folder.
    """
    own = os.environ.get("BRIMFUL_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brimful"


def runs_folder() -> Path:
    """Where run folders are made unless the recipe says otherwise: `BRIMFUL_RUNS`, else `runs`
    here.
    """
    return Path(os.environ.get("BRIMFUL_RUNS") or "runs")


def shared_data_folder() -> Path | None:
    """Real data for tests and benchmarks: `BRIMFUL_DATA`, else `../shared/data`; None when
    absent.
    """
    folder = Path(os.environ.get("BRIMFUL_DATA") or "../shared/data")
    return folder if folder.is_dir() else None


def hub_cache_folder() -> Path:
    """Where the hub library keeps what it downloads: `HF_HUB_CACHE`, `HF_HOME`, or the user's cache
    folder.
    """
    own = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if own:
        return Path(own).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_HOME") or cache / "huggingface").expanduser() / "hub"


def hub_is_offline() -> bool:
    """Whether the user told Hugging Face libraries not to use the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def prepared_data_sets(home: str) -> Path:
    """Where the library datasets keeps what it has prepared: `HF_DATASETS_CACHE`, else in Hugging
    Face's home.
    """
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home, "datasets"))


def notebook_is_small() -> bool:
    """Whether notebooks are to run at the size of a test: on a CPU, with nothing downloaded
    (`BRIMFUL_NOTEBOOK=small`).
    """
    return os.environ.get("BRIMFUL_NOTEBOOK", "").lower() == "small"


def whole() -> Texts:
    """Return the environment, for a process that gets the same."""
    return dict(os.environ)


def of_a_plain_process() -> dict[str, str]:
    """The environment for a process whose output is read by a program: without what makes it colour
    and redraw (a notebook's kernel sets it).
    """
    forced = {"FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    return {name: value for name, value in os.environ.items() if name not in forced}


_VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_cuda_devices() -> str | None:
    """The value of `CUDA_VISIBLE_DEVICES`, or None when it is not set."""
    return os.environ.get(_VISIBLE)


def with_cuda_devices(names: Sequence[str]) -> Texts:
    """Return this process's environment for one that sees only these CUDA devices."""
    return {**os.environ, _VISIBLE: ",".join(names)}


def hidden_instructions() -> list[str]:
    """Return the variables that keep torch or oneDNN from instructions that the CPU has, as
    "NAME=value".
    """
    names = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
    return [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]


def compiler_cache_folder() -> Path:
    """Where torch.compile keeps what it made: `TORCHINDUCTOR_CACHE_DIR`, else a temporary folder of
    the user's (torch 2.13, read 2026-11-29).
    """
    own = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if own:
        return Path(own)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir(), f"torchinductor_{user}")


def wanted_threads() -> int | None:
    """Return the threads that `OMP_NUM_THREADS` allows (of nested levels the first), None where it
    says nothing.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def cpp_compiler() -> str | None:
    """The C++ compiler the user named (`CXX`), which torch.compile honours."""
    return os.environ.get("CXX")


def wait_politely() -> None:
    """Let OpenMP threads spin only briefly while they wait for each other, unless the user chose
    otherwise.

    The default spins long: when another program holds one of the cores, every parallel region then
    waits a time slice for it, and training on 2 cores ran 7 times slower. Spinning a thousand turns
    costs 7 to 10 % on an idle machine; not at all (passive) costs 40 to 70 % on small models
    (docs/log). Acts on GNU's OpenMP, only when called before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_few_kernels() -> None:
    """Bound what a CPU's matrix library keeps of every shape it has met, unless the user chose
    otherwise.

    Rows of examples have ever new lengths, and each left its kernels behind: tuning a 4M-parameter
    model grew by 1.1 GB in 40 steps, with these bounds by 0.27 GB and then no more, in no more time
    (docs/log). Acts only when called before torch computes.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")


def let_vllm_run_in_this_process() -> None:
    """Have vLLM compute in this process, quietly and on the threads that are there, unless the user
    chose otherwise. Acts only before vLLM is imported.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


WHOLE_HEAP = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}
"""Environment variables that make glibc join every freed block to the free blocks beside it."""
_NVIDIA = Path("/dev/nvidiactl")
"""Exists on machines on which NVIDIA's driver runs."""


def start_again_with_whole_heap(arguments: Sequence[str]) -> None:
    """Replace this process by one of the same command under `WHOLE_HEAP`, unless the user chose the
    C library's tunables.

    glibc sets small freed blocks aside without joining them to the free block beside. What the
    alignment of a large tensor leaves behind it is such a block; whatever takes it makes the
    tensor's place a few bytes too small for the next one of its size, and the heap grows. Peak
    memory of tuning SmolLM2-135M on a CPU fell by 13 to 18 %, in the same time (docs/log).

    glibc reads tunables only when a process begins. Does nothing on other systems than Linux, where
    there is an NVIDIA GPU, and in a process that was started as anything but brimful.

    Args:
        arguments: Arguments of the command that this process was started with.
    """
    is_own = Path(sys.argv[0]).name in {"brimful", "__main__.py"}
    is_whole = sys.orig_argv[-len(arguments) :] == list(arguments)
    if sys.platform != "linux" or not (is_own and is_whole) or _NVIDIA.exists():
        return
    if WHOLE_HEAP.keys() & os.environ.keys():
        return
    words = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, words, {**os.environ, **WHOLE_HEAP})  # noqa: S606 - no shell


def load_no_pydantic_plugins() -> None:
    """Let pydantic load no plugins, unless the user chose which: to look for them it reads what
    every installed package says of itself. Acts only before a model is made.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


STARTED_BY_BRIMFUL = "BRIMFUL_STARTED_RANKS"
"""Set for processes that `brimful train --devices` starts."""
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def launched_rank() -> dict[str, int] | None:
    """Return which process of how many a launcher such as torchrun made of this one, by torchrun's
    names; None where none did.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    values = {name: os.environ.get(name, "") for name in _LAUNCHERS}
    values["LOCAL_RANK"] = values["LOCAL_RANK"] or values["RANK"]
    values["LOCAL_WORLD_SIZE"] = values["LOCAL_WORLD_SIZE"] or values["WORLD_SIZE"]
    return {name: int(value) for name, value in values.items()}


def meeting_point() -> tuple[str, int, bool, str]:
    """Return host and port at which the ranks of a run meet, whether the launcher holds the store
    there (else rank 0 does), and how often it has started the ranks again.
    """
    is_held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    host = os.environ.get("MASTER_ADDR") or "127.0.0.1"
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return host, int(os.environ.get("MASTER_PORT") or 29500), is_held, restarts


def was_started_by_brimful() -> bool:
    """Return whether `brimful train --devices` started this process as one of several ranks."""
    return STARTED_BY_BRIMFUL in os.environ


def is_told_by_another_process() -> bool:
    """Return whether this process is one of several ranks and another one talks to the user before
    training: the first rank, or the command that started all.
    """
    launched = launched_rank()
    return launched is not None and (launched["RANK"] > 0 or was_started_by_brimful())


@contextmanager
def ranks_are_started(cuda_devices: Sequence[str] | None = None) -> Iterator[None]:
    """Let processes that are started meanwhile know that they are ranks which this one watches.

    Args:
        cuda_devices: What they see; None: what this process sees.
    """
    before = os.environ.get(_VISIBLE)
    os.environ[STARTED_BY_BRIMFUL] = "1"
    if cuda_devices is not None:
        os.environ[_VISIBLE] = ",".join(cuda_devices)
    try:
        yield
    finally:
        os.environ.pop(STARTED_BY_BRIMFUL, None)
        os.environ.pop(_VISIBLE, None)
        if before is not None:
            os.environ[_VISIBLE] = before
