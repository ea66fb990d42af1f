"""A plain training whose requests for memory are recorded, in a process of its own, and given to
the model of torch's allocator.

    python -m brimful.prove.memory_history '{"trainer": "loop", "model": "FOLDER", ...}'

Prints how the two compare as one line of JSON. CUDA only.
"""

import json
import sys
from dataclasses import asdict

import torch

from brimful.planning.allocator_history import HistoryComparison, compare_with_model
from brimful.prove.plain_training import PlainJob, time_job

MODULE = "brimful.prove.memory_history"


def compared(job: PlainJob) -> HistoryComparison:
    """Train for the job's steps and compare what the allocator did with what its model does.

    Raises:
        RuntimeError: memory does not hold one sequence.
        UnreadableHistory: the allocator has other than its default settings.
    """
    torch.cuda.memory._record_memory_history(context=None)
    time_job(job)
    snapshot = torch.cuda.memory._snapshot()
    return compare_with_model(snapshot, torch.device(job.device).index or 0)


def main() -> None:
    """Run the job of the command line."""
    print(json.dumps(asdict(compared(PlainJob(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
