"""What a result was measured with: versions, platform, device, command."""

import platform
import shlex
import sys
import time
from pathlib import Path

from brimful.base.libraries import version_of
from brimful.base.types import JsonDict, Texts
from brimful.hardware.device import Device

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "safetensors",
    "numpy",
    "peft",
    "bitsandbytes",
)


def describe_environment(device: Device) -> JsonDict:
    """The content of environment.json; packages that are not installed are left out."""
    return {
        "brimful": version_of("brimful"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
        "device": device.to_json(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def versions_here() -> Texts:
    """Return the versions of brimful, Python and the packages that decide memory and time."""
    here = {"brimful": version_of("brimful") or "", "python": platform.python_version()}
    return here | _packages()


def _packages() -> dict[str, str]:
    return {name: version for name in PACKAGES if (version := version_of(name))}
