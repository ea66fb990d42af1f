"""Does the notebooks' set-up cell keep the torch that a machine came with? A fresh environment like
Colab's, and the very cell of a notebook.

`python benchmarks/keeps_torch.py` (minutes: it installs torch, then brimful with all it needs).
Newer versions of torch and NumPy are on the index, so that an installation that does not hold them
back would show.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import write_record

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("torch", "numpy")
FILES = """
import importlib.metadata, json, sys
told = {}
for name in sys.argv[1:]:
    distribution = importlib.metadata.distribution(name)
    paths = [distribution.locate_file(path) for path in distribution.files or []]
    stats = {str(path): path.stat() for path in paths if path.is_file() and "__pycache__" not in path.parts}
    files = {path: [status.st_size, status.st_mtime_ns, status.st_ino] for path, status in stats.items()}
    told[name] = {"version": distribution.version, "files": files}
print(json.dumps(told))
"""


def setup_cell(notebook: Path) -> str:
    """The code of the cell that sets a notebook up."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    (found,) = [
        "".join(cell["source"])
        for cell in cells
        if "".join(cell["source"]).startswith("# @title Set-up")
    ]
    return found


def main() -> None:
    """Install, set up, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="2.13.0", help="version that the machine came with")
    parser.add_argument("--numpy", default="2.3.5", help="version that the machine came with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_record("keeps_torch", measure(Path(scratch), arguments.torch, arguments.numpy))


def measure(scratch: Path, torch: str, numpy: str) -> dict[str, object]:
    """Versions and files before and after, and whether brimful plans with that torch."""
    source = scratch / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "tests", "benchmarks", "docs", "runs", "__pycache__"),
    )
    subprocess.run([sys.executable, "-m", "venv", scratch / "machine"], check=True)
    python = scratch / "machine" / "bin" / "python"
    environment = {
        **os.environ,
        "BRIMFUL_SOURCE": source.as_uri(),
        "BRIMFUL_CACHE": str(scratch / "cache"),
        "BRIMFUL_RUNS": str(scratch / "runs"),
    }

    def run(*words: str | Path) -> str:
        return subprocess.run(
            [python, *words],
            env=environment,
            cwd=scratch,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    run("-m", "pip", "install", "--quiet", f"torch=={torch}", f"numpy=={numpy}")
    before, packages_before = (
        json.loads(run("-c", FILES, *KEPT)),
        run("-m", "pip", "freeze").splitlines(),
    )
    started_s = time.perf_counter()
    told = run("-c", setup_cell(ROOT / "notebooks" / "tour.ipynb"))
    setup_s = time.perf_counter() - started_s
    after, packages_after = (
        json.loads(run("-c", FILES, *KEPT)),
        run("-m", "pip", "freeze").splitlines(),
    )
    planned = subprocess.run(
        [python, "-c", "from brimful.cli import main; main()", "plan", "small/quickstart.yaml"],
        env=environment,
        cwd=source / "notebooks",
        capture_output=True,
        text=True,
        check=False,
    )
    changed = {
        name: [
            path
            for path, status in before[name]["files"].items()
            if after[name]["files"].get(path) != status
        ]
        for name in KEPT
    }
    record: dict[str, object] = {
        "cell_says": told.strip(),
        "before": {name: before[name]["version"] for name in KEPT},
        "after": {name: after[name]["version"] for name in KEPT},
        "files_compared": {name: len(before[name]["files"]) for name in KEPT},
        "files_changed": {name: len(paths) for name, paths in changed.items()},
        "packages_before": len(packages_before),
        "packages_after": len(packages_after),
        "packages_replaced": [line for line in packages_before if line not in packages_after],
        "setup_s": round(setup_s, 1),
        "plans_with_it": planned.returncode == 0,
    }
    print(json.dumps(record, indent=2))
    assert before == after, changed
    assert planned.returncode == 0, planned.stderr
    return record


if __name__ == "__main__":
    main()
