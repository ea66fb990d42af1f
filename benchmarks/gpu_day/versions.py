"""Writes what a machine has: its devices, memory and disk, and the versions of what counts.

python versions.py OUT.json
"""

import json
import os
import shutil
import sys
import tempfile
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "datasets",
    "pydantic",
    "trl",
    "vllm",
    "numpy",
)
NEEDED = ("brimful.cli", "brimful.planning._replay", "pydantic", "datasets")


def main() -> None:
    """Write the file, and print it. Exits with 1 where brimful cannot be imported."""
    found = {
        "packages": {name: version_of(name) for name in PACKAGES},
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "devices": [device(number) for number in range(torch.cuda.device_count())],
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "disk_free_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        "missing": {name: reason for name in NEEDED if (reason := import_failure(name))},
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["missing"]))


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def device(number: int) -> dict[str, object]:
    """Return what torch says of a GPU before anything was put on it, with the bytes of a context."""
    properties = torch.cuda.get_device_properties(number)
    free, total = torch.cuda.mem_get_info(number)
    return {
        "name": properties.name,
        "capability": torch.cuda.get_device_capability(number),
        "processors": properties.multi_processor_count,
        "properties_bytes": properties.total_memory,
        "driver_bytes": total,
        "context_bytes": total - free,
    }


def import_failure(module: str) -> str | None:
    """Return why a module cannot be imported; None where it can."""
    try:
        import_module(module)
    except ImportError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
