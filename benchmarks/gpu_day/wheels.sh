#!/usr/bin/env bash
# Wheels that a GPU machine without network lacks, where it has torch, transformers, peft, tokenizers, scikit-learn, hypothesis and
# pytest-xdist for Python 3.12 already. bitsandbytes keeps its library for CUDA 13.0 alone (3.6 of 43 MB).
#
#     bash benchmarks/gpu_day/wheels.sh FOLDER
set -euo pipefail
FOLDER=${1:?a folder for the wheels}
HERE=$(cd "$(dirname "$0")" && pwd)
pinned() { grep -iE "^($1)==" "$HERE/../../constraints.txt" || true; }
PACKAGES=$(pinned 'annotated-types|bitsandbytes|datasets|dill|multiprocess|pydantic|pydantic[-_]core|syrupy|trl|typing-inspection')
mkdir -p "$FOLDER"
# shellcheck disable=SC2086 - one argument a package
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --abi cp312 --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
  --dest "$FOLDER" $PACKAGES
python3 - "$FOLDER" <<'PYTHON'
import sys, zipfile
from pathlib import Path

for wheel in Path(sys.argv[1]).glob("bitsandbytes-*.whl"):
    slim = wheel.with_suffix(".slim")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(slim, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            name = Path(entry.filename).name
            is_other = name.startswith("libbitsandbytes_") and name not in (
                "libbitsandbytes_cuda130.so",
                "libbitsandbytes_cpu.so",
            )
            if not is_other:
                new.writestr(entry, old.read(entry))
    slim.replace(wheel)
PYTHON
du -sh "$FOLDER"
