#!/usr/bin/env bash
# The GPU machine's libraries here, on the CPU: torch 2.11 for CUDA 13.0, transformers 5.17, no extras, and the tests of the parts
# that a GPU runs in another way: those with GPU tests in them, attention, losses, adapters, waits of the host. Some 5 GB.
#
#     bash benchmarks/gpu_day/image.sh FOLDER   # PYTHON=python3.12 where that is there
set -euo pipefail
FOLDER=$(realpath -m "${1:?a folder for the environment}")
PYTHON=${PYTHON:-python3}
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
uv() { "$ROOT/.venv/bin/python" -m uv --quiet --no-progress "$@"; }
mkdir -p "$FOLDER"
export UV_CACHE_DIR=${UV_CACHE_DIR:-$FOLDER/cache}
uv venv --clear --python "$PYTHON" "$FOLDER/env"
uv pip install --python "$FOLDER/env/bin/python" "torch==2.11.0" "transformers==5.17.0" "$ROOT" \
  hypothesis jsonschema nbformat pytest pytest-timeout pytest-xdist syrupy
"$FOLDER/env/bin/python" -c "import sys, torch, transformers; print(*sys.version_info[:2], torch.__version__, transformers.__version__)"
cd "$ROOT"
TESTS=$(grep -rlE 'mark\.gpu' tests --include='test_*.py')
# shellcheck disable=SC2086 - file names without spaces
OMP_NUM_THREADS=1 "$FOLDER/env/bin/python" -m pytest -q -n 2 --dist loadfile -W ignore -p no:cacheprovider \
  -o addopts="--strict-markers --import-mode=importlib" --timeout 600 $TESTS \
  tests/training/test_losses.py tests/model/test_quick_layers.py tests/rehearsal/test_host_waits.py
