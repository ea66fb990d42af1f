"""Kill a drawing of samples with SIGKILL at random moments, run the same command again, and compare
with an undisturbed drawing byte for byte.

    python benchmarks/kill_sampling.py [--kills 10] [KEY=VALUE]...

The samples are those of the recipe unit-rft-offline, of 150 questions; its base and student are
trained first where that has not been done (BRIMFUL_RUNS). Compared are samples.jsonl and
train.jsonl.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from brimful.base.rundir import read_journal, read_json
from brimful.chains.phases import folder_of
from brimful.chains.sampling import FACTS_FILE
from brimful.recipe import load
from brimful.selection.journal import JOURNAL_FILE, SAMPLES_FILE, TRAINING_FILE
from record import write_record

RECIPE, OVERRIDES = (
    "unit-rft-offline",
    ("rft.questions.max_questions=150", "rft.seeds=[1234]", "run.name=kill-sampling"),
)


def main() -> None:
    """Draw once in peace and once with interruptions; write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    words = [RECIPE, *OVERRIDES, *options.overrides]
    samples = folder_of(load(words[0], words[1:])) / "samples-1"
    shutil.rmtree(samples, ignore_errors=True)
    if _start(words).wait():
        raise SystemExit("the undisturbed drawing did not finish")
    seconds = read_json(samples / FACTS_FILE)["seconds"]
    undisturbed = samples.with_name("undisturbed")
    shutil.rmtree(undisturbed, ignore_errors=True)
    samples.rename(undisturbed)
    drawn = random.Random(0)
    held: list[int] = []
    while len(held) < options.kills:
        held.append(
            _kill_once(
                words, samples / JOURNAL_FILE, drawn.uniform(0, 1.6 * seconds / options.kills)
            )
        )
        print(f"kill {len(held)}: {held[-1]} samples are there", flush=True)
    if _start(words).wait():
        raise SystemExit("the resumed drawing did not finish")
    equal = all(
        (samples / name).read_bytes() == (undisturbed / name).read_bytes()
        for name in (SAMPLES_FILE, TRAINING_FILE)
    )
    total = len((samples / SAMPLES_FILE).read_text().splitlines())
    print(
        f"{total} samples after {len(held)} kills:"
        f" {'equal byte for byte' if equal else 'DIFFERENT'}"
    )
    print(
        write_record(
            "kill_sampling",
            {
                "kills": len(held),
                "samples_at_kills": held,
                "samples": total,
                "equal": equal,
                "undisturbed_s": seconds,
            },
        )
    )
    raise SystemExit(not equal)


def _start(words: list[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", "from brimful.cli import main; main()", "sample", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _kill_once(words: list[str], journal: Path, delay_s: float) -> int:
    """Kill so long after the first new sample; returns how many samples were held then."""
    before = journal.stat().st_size if journal.exists() else -1
    process = _start(words)
    while process.poll() is None and (not journal.exists() or journal.stat().st_size <= before):
        time.sleep(0.005)
    time.sleep(delay_s)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise SystemExit(
            "the drawing ended before all kills: ask more questions (rft.questions.max_questions)"
        )
    return sum(1 for _ in read_journal(journal)) - 1


if __name__ == "__main__":
    main()
