# @title Set-up: the torch that came with this machine stays (on Kaggle, switch the internet on first: Settings > Internet)
import importlib
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

SOURCE = os.environ.get("BRIMFUL_SOURCE", "git+https://REPOSITORY")
KEPT = ("torch", "torchvision", "torchaudio", "triton", "numpy")
NEEDED = (2, 11)


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if importlib.util.find_spec("brimful") is None:
    here = {name: installed(name) for name in KEPT if installed(name)}
    if "torch" in here and tuple(int(part) for part in here["torch"].split(".")[:2]) < NEEDED:
        raise SystemExit(
            f"This machine came with torch {here['torch']}, and brimful needs 2.11 or newer. In Colab choose a newer runtime version "
            "(Runtime > Change runtime type), on Kaggle the latest environment. To replace torch yourself: "
            "%pip install --upgrade torch torchvision torchaudio, restart, and run this cell again."
        )
    with open("kept.txt", "w") as file:
        file.writelines(f"{name}=={found}\n" for name, found in here.items())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", "kept.txt", f"brimful[EXTRAS] @ {SOURCE}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"brimful could not be installed; nothing was changed.\n{done.stderr[-3000:]}")
    importlib.invalidate_caches()
    print("kept:", ", ".join(f"{name} {installed(name)}" for name in here))

import brimful.notebook as nb
