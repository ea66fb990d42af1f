"""The model of torch's CUDA allocator beside what the allocator did on other people's GPUs.

    python benchmarks/allocator_snapshots.py CLONES

Memory histories of torch lie in public repositories: every request that a program made of the
allocator, and every segment that it asked of the driver. The model gets the same requests, and
what both have reserved is compared after each of them. CLONES holds clones of `SOURCES`, each in a
folder of its owner, such as CLONES/shreyansh26/MLSys-Experiments.

A history is a pickle file. It is read without importing anything: it may hold plain values alone.
"""

import argparse
import hashlib
import io
import pickle
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brimful.planning.allocator_history import UnreadableHistory, compare_with_model
from record import summary, write_record


@dataclass(frozen=True)
class Source:
    """A public repository with memory histories.

    Attributes:
        commit: Of the files that were read.
        what: What the programs did, as far as names of files say. None says on which GPU.
    """

    repository: str
    commit: str
    what: str


SOURCES = (
    Source(
        "Wedsonlin/assignment2-systems",
        "87b086417ea831f54f7535eb3680f90da0952722",
        "course work on a GPT: forward passes and whole steps, 128 to 1,024 positions",
    ),
    Source(
        "kkaitlyn111/cs336-a2-systems",
        "c1272e189aa1b8ab6b0a02e08f3f2be1ae122c39",
        "course work on a GPT: forward passes and whole steps, fp32 and mixed, one after another",
    ),
    Source(
        "silmont2000/assignment2-systems",
        "75d09aad44d65bcf350114d4beaf1d3a7cde42db",
        "course work on a GPT: forward passes in fp32 and bf16, attention",
    ),
    Source(
        "cranberrii/ftcourse",
        "a8cedf28ee118bdd0d50773780885e0e3a4bf027",
        "exercises of a course on fine-tuning",
    ),
    Source(
        "shreyansh26/MLSys-Experiments",
        "b63fb8c71bc0019205404d1b979a519ee8a748d0",
        "one linear layer of 500M weights, with and without gradients",
    ),
)


class PlainValues(pickle.Unpickler):
    """Reads lists, dictionaries, texts and numbers, and refuses anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse.

        Raises:
            pickle.UnpicklingError: always.
        """
        raise pickle.UnpicklingError(f"the file holds {module}.{name}")


def main() -> None:
    """Read the histories, print a line for each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", type=Path)
    clones = parser.parse_args().clones
    read: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    seen: set[str] = set()
    for source in SOURCES:
        folder = clones / source.repository
        for path in _pickles(folder, source.commit):
            name = f"{source.repository}/{path}"
            content = _git(folder, "show", f"{source.commit}:{path}")
            digest = hashlib.sha256(content).hexdigest()
            if not content or digest in seen:
                left_out[name] = "the same as another one" if content else "the clone lacks it"
                continue
            seen.add(digest)
            try:
                found = compare_with_model(PlainValues(io.BytesIO(content)).load())
            except (UnreadableHistory, pickle.UnpicklingError) as error:
                left_out[name] = str(error)
                continue
            read[name] = {**asdict(found), "error": found.error, "sha256": digest}
            print(f"{name}: {found.same_reserved} of {found.requests} requests equal")
    requests = sum(each["requests"] for each in read.values())
    same = sum(each["same_reserved"] for each in read.values())
    written = write_record(
        "allocator_snapshots",
        {
            "sources": [asdict(each) for each in SOURCES],
            "histories": len(read),
            "requests": requests,
            "same_reserved": same,
            "peak_error": summary([each["error"] for each in read.values()]),
            "read": read,
            "left_out": left_out,
        },
    )
    print(f"{len(read)} histories, {same:,} of {requests:,} requests equal; {written}")


def _pickles(folder: Path, commit: str) -> list[str]:
    """Return the pickle files at a commit whose name or folder speaks of memory."""
    names = _git(folder, "ls-tree", "-r", "--name-only", commit).decode().splitlines()
    return [
        each
        for each in names
        if each.endswith((".pickle", ".pkl")) and ("memory" in each or "mem_snapshot" in each)
    ]


def _git(folder: Path, *arguments: str) -> bytes:
    """Return what git prints; nothing where the clone lacks the file."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=False).stdout


if __name__ == "__main__":
    main()
