"""Count what the watch for spikes tells in ordinary runs, where nothing is wrong: every spike is a
false alarm.

    python benchmarks/spikes.py RUN...        # folders of finished runs; writes records/spikes.json

The journals are read, nothing is trained. The count of spikes is the run's own. How near the largest
loss and gradient norm came to the limit is computed again from what was recorded.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brimful.runs import read_run
from brimful.runs.records import StepRecord
from brimful.training.spikes import DEVIATIONS, LEAST_DEVIATION, MAD_TO_DEVIATION, WINDOW
from record import write_record


def largest_deviation(values: Sequence[float]) -> float:
    """Return the largest deviation of a value's logarithm from the median of the 64 before it, in
    robust standard deviations of those.
    """
    logs = np.log(values)
    largest = 0.0
    for place in range(WINDOW, len(logs)):
        before = logs[place - WINDOW : place]
        median = np.quantile(before, 0.5, method="lower")
        spread = MAD_TO_DEVIATION * np.quantile(abs(before - median), 0.5, method="lower")
        largest = max(largest, (logs[place] - median) / max(spread, LEAST_DEVIATION))
    return float(largest)


def count(folder: Path) -> dict[str, Any]:
    """Return what the watch told of one run."""
    run = read_run(folder)
    steps: tuple[StepRecord, ...] = run.steps
    return {
        "run": run.name,
        "method": run.recipe.method,
        "learning_rate": run.recipe.values["optimizer"]["learning_rate"],
        "judged": max(0, len(steps) - WINDOW),
        "spikes": steps[-1].spikes,
        "largest_loss": round(largest_deviation([each.loss or 0 for each in steps]), 2),
        "largest_norm": round(largest_deviation([each.grad_norm or 0 for each in steps]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("runs", type=Path, nargs="+")
    counted = [count(folder) for folder in parser.parse_args().runs]
    record = {
        "limit": DEVIATIONS,
        "n": sum(each["judged"] for each in counted),
        "spikes": sum(each["spikes"] for each in counted),
        "runs": counted,
    }
    write_record("spikes", record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
