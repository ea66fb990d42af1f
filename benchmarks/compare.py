"""brimful beside other tools at the same work on one core of this machine.

    python benchmarks/compare.py KIND [--rounds 7] [--steps 10] [--only NAME ...] [--record]
    python benchmarks/compare.py KIND --help

KIND is a module of `contestants`, which says what is compared, with whom, and when a result counts.
Rules of all kinds: the same weights, data and settings; every contestant a process of its own on one
thread; warm-up and compiling excluded and reported; rounds interleaved forwards and backwards; CPU
time; medians of paired ratios with a bootstrap interval. `--record` writes benchmarks/records/.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path

from contestants.rounds import Comparison, compare

KINDS = (
    "pretrain",
    "tune",
    "preferences",
    "rewards",
    "classify",
    "sampling",
    "evaluation",
    "nanogpt",
)


def comparison(kind: str) -> Comparison:
    """Return the description of a kind."""
    found: Comparison = importlib.import_module(f"contestants.{kind}").COMPARISON
    return found


def parser() -> argparse.ArgumentParser:
    """Return the command line: a subcommand for each kind."""
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = made.add_subparsers(dest="kind", required=True)
    for kind in KINDS:
        about = comparison(kind)
        words = kinds.add_parser(
            kind,
            description=importlib.import_module(f"contestants.{kind}").__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        words.add_argument("--rounds", type=int, default=about.rounds)
        words.add_argument("--steps", type=int, default=about.steps, help="of a round")
        words.add_argument("--warm-up", type=int, default=about.warm_up, help="steps before")
        gate = "steps whose losses are compared"
        words.add_argument("--gate-steps", type=int, default=about.gate_steps, help=gate)
        words.add_argument("--minutes", type=float, default=600, help="no new round after these")
        words.add_argument("--only", nargs="+", metavar="NAME", default=about.names)
        words.add_argument("--record", action="store_true", help="write benchmarks/records/")
        for name, default, told in about.options:
            if default is False:
                words.add_argument(f"--{name}", action="store_true", help=told)
            elif default is None:
                words.add_argument(f"--{name}", type=_there, required=True, help=told)
            else:
                words.add_argument(f"--{name}", type=type(default), default=default, help=told)
        words.add_argument("--worker", help=argparse.SUPPRESS)
        words.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return made


def _there(path: str) -> str:
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path} is not there")
    return path


def main() -> None:
    """Compare, or be one of those that are compared."""
    options = parser().parse_args()
    kind = comparison(options.kind)
    if options.worker:
        kind.work(options.worker, options.folder, options)
        return
    if unknown := set(options.only) - set(kind.names):
        sys.exit(f"no contestants of {options.kind}: {unknown}. There are {', '.join(kind.names)}")
    if missing := kind.missing(options.only):
        sys.exit(f"results of {options.kind} are judged by {missing}: add to --only")
    if kind.gate_steps and options.gate_steps < 1:
        sys.exit(f"results of {options.kind} are judged by losses: --gate-steps is at least 1")
    if kind.needs and importlib.util.find_spec(kind.needs[0]) is None:
        module, extra = kind.needs
        sys.exit(f"{options.kind} needs {module}: pip install -e '.[{extra}]'")
    with tempfile.TemporaryDirectory() as folder:
        compare(kind, Path(folder), options)


if __name__ == "__main__":
    main()
