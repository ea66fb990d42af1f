#!/usr/bin/env bash
# One of the two calls of a GPU day: see README.md beside this file.
#
#     OUT=FOLDER bash benchmarks/gpu_day/day.sh 1|2
#     DRY=1 OUT=FOLDER bash benchmarks/gpu_day/day.sh 1     # the same on a CPU, in small
set -u
STAGE=${1:?1 or 2}
PYTHON=${PYTHON:-python3}
TOTAL_S=${TOTAL_S:-350}
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
OUT=${OUT:-$ROOT/gpu-day}
WORK=${WORK:-/tmp/brimful-gpu-day}
PROOF=$WORK/proof
if [ -n "${DRY:-}" ]; then DEVICE=cpu; else DEVICE=cuda; fi
mkdir -p "$OUT" "$PROOF"
cd "$ROOT" || exit 2

left() {
  local seconds=$((TOTAL_S - SECONDS))
  echo $((seconds > 0 ? seconds : 0))
}

step() { # step NAME SECONDS COMMAND...: for so long at most, and never past the end
  local name=$1 most=$2 began=$SECONDS code
  shift 2
  [ "$most" -gt "$(left)" ] && most=$(left)
  if [ "$most" -lt 8 ]; then
    echo "[$SECONDS s] no time is left for $name"
    return
  fi
  timeout -k 5 "$most" "$@" > "$OUT/$name-$STAGE.txt" 2>&1
  code=$?
  echo "[$SECONDS s] $name: exit $code after $((SECONDS - began)) s"
  tail -n 3 "$OUT/$name-$STAGE.txt"
  keep
}

keep() { # whatever is known goes to OUT at once, for the next step may be the last
  [ -f "$PROOF/prove.json" ] && cp "$PROOF/prove.json" "$OUT/prove-$STAGE.json"
  [ -f "$PROOF/index.html" ] && cp "$PROOF/index.html" "$OUT/prove-$STAGE.html"
  return 0
}

prove() { # prove SECONDS LONGEST NAME,NAME...: trials in this order, kept as each ends
  local seconds=$1 longest=$2
  shift 2
  [ -n "$1" ] || return
  (while sleep 5; do keep; done) &
  local keeper=$!
  step trials "$seconds" "$PYTHON" -m brimful prove "$PROOF" --device "$DEVICE" --only "$1" \
    --longest "$longest" --minutes "$("$PYTHON" -c "print(max(0.1, ($seconds - 10) / 60))")"
  kill "$keeper"
}

export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export BRIMFUL_CACHE=$WORK/cache TORCHINDUCTOR_CACHE_DIR=$WORK/inductor TRITON_CACHE_DIR=$WORK/triton
if compgen -G "${WHEELS:-$ROOT/gpu-day-wheels}/*.whl" > /dev/null; then
  # Not into the machine's own environment, which may be read-only.
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$WORK/site" "${WHEELS:-$ROOT/gpu-day-wheels}"/*.whl || echo "pip failed"
fi
export PYTHONPATH=$ROOT/src:$WORK/site
# A later call goes on with the record of the one before: what held is not tried again.
[ -f "$ROOT/benchmarks/records/gpu/prove.json" ] && [ ! -f "$PROOF/prove.json" ] &&
  [ -z "${DRY:-}" ] && cp "$ROOT/benchmarks/records/gpu/prove.json" "$PROOF/"

step versions "${LONGEST_S:-40}" "$PYTHON" "$HERE/versions.py" "$OUT/versions.json"
if [ "$STAGE" = 1 ]; then
  step probe "${LONGEST_S:-60}" "$PYTHON" "$HERE/probe.py" "$OUT/probe.json"
  GPU_TESTS=${GPU_TESTS-$(grep -rlE 'mark\.gpu' tests --include='test_*.py' | grep -v device_trials)}
  # shellcheck disable=SC2086 - file names without spaces
  [ -n "$GPU_TESTS" ] && step tests 90 "$PYTHON" -m pytest -q -m gpu -n 8 --dist load -W ignore \
    -p no:cacheprovider -o addopts="--strict-markers --import-mode=importlib" --timeout 80 $GPU_TESTS
  prove "$(left)" "${LONGEST_S:-75}" "${TRIALS-gpt-124m-compiled,lora-0.5b-compiled,documents-1024,lora-8b,allocator,gpt-124m-50k,gpt-124m,lora-0.5b}"
else
  prove "$(left)" "${LONGEST_S:-110}" "${TRIALS-calibrate,gpt-124m-compiled-calibrated,lora-8b-calibrated,speed,tuning-speed,edge,qlora-8b,sampling-speed,monitor,qlora,documents}"
fi
[ -d "$BRIMFUL_CACHE/calibration" ] && tar czf "$OUT/calibration-$STAGE.tgz" -C "$BRIMFUL_CACHE" calibration
[ -d "$PROOF/output" ] && tar czf "$OUT/output-$STAGE.tgz" -C "$PROOF" output
keep
echo "[$SECONDS s] end"
ls "$OUT"
