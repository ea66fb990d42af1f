"""The only reader, and for one variable the only writer, of the environment."""

import os
from pathlib import Path


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


def of_a_plain_process() -> dict[str, str]:
    """The environment for a process whose output is read by a program: without what makes it colour
    and redraw (a notebook's kernel sets it).
    """
    forced = {"FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    return {name: value for name, value in os.environ.items() if name not in forced}


def visible_cuda_devices() -> str | None:
    """The value of `CUDA_VISIBLE_DEVICES`, or None when it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def cpp_compiler() -> str | None:
    """The C++ compiler the user named (`CXX`), which torch.compile honours."""
    return os.environ.get("CXX")


def wait_politely() -> None:
    """Let OpenMP threads spin only briefly while they wait for each other, unless the user chose
    otherwise.

    The default spins long: when another program holds one of the cores, every parallel region then
    waits a time slice for it, and training on 2 cores ran 7 times slower. Spinning a thousand turns
    costs 7 to 10 % on an idle machine; not at all (passive) costs 40 to 70 % on small models
    (docs/log.md). Acts on GNU's OpenMP, only when called before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_few_kernels() -> None:
    """Bound what a CPU's matrix library keeps of every shape it has met, unless the user chose
    otherwise.

    Rows of examples have ever new lengths, and each left its kernels behind: tuning a 4M-parameter
    model grew by 1.1 GB in 40 steps, with these bounds by 0.27 GB and then no more, in no more time
    (docs/log.md). Acts only when called before torch computes.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")


def silence_gradio() -> None:
    """Keep Gradio from calling home, and from settings that would open a page wider than brimful
    does. Acts only before it is imported.
    """
    for name in (
        "GRADIO_ALLOWED_PATHS",
        "GRADIO_SHARE",
        "GRADIO_WATCH_DIRS",
        "GRADIO_VIBE_MODE",
        "GRADIO_NUM_WORKERS",
    ):
        os.environ.pop(name, None)
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
