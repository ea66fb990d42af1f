"""A training step of an okadfa recipe on a CPU: this code and an earlier commit, compiled and not, and
with softmax attention, on the same sequences, in turns.

    git worktree add --detach BEFORE COMMIT
    python benchmarks/okadfa_step.py BEFORE [--recipe okadfa-small] [--rounds 9] [--steps 4]

Whole optimizer steps of brimful's own loop under the plan that each derives for one thread, with
the text of Python's library in place of WikiText. Rules as in `pretrain_cpu.py`: one thread each,
CPU time, warm-up and compiling excluded, median of paired ratios with a bootstrap interval.
Validity gate: the training loss over the last 10 steps before the timing agrees with that of the
earlier commit within `LOSS_TOLERANCE`, for contestants with kernel attention.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from contestant import Contestant, Worker, interleaved, train_ours
from record import commit, ratio_interval, summary, write_record

HERE = Path(__file__).resolve().parent.parent
LOSS_TOLERANCE = 0.005
"""Relative, as in `pretrain_cpu.py`."""
WARM_UP_STEPS, GATE_STEPS = 3, 20
RECIPE = (
    "data.path=[builtin:python-docs]",
    "data.config_name=null",
    "data.document_start=null",
    "plan.device=cpu",
    "plan.threads=1",
)
KINDS = {
    "kernel": ("plan.compile=false",),
    "kernel, compiled": ("plan.compile=true",),
    "softmax": ("plan.compile=false", "model.attention=softmax"),
}


def main() -> None:
    """Compare, or be one of those that are compared."""
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path, nargs="?", help="checkout of the earlier commit")
    parser.add_argument("--recipe", default="okadfa-small")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _train(Worker(options.worker, options.folder, WARM_UP_STEPS), options.recipe)
    elif options.before is None:
        parser.error("name the checkout of the earlier commit")
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    _prepare(folder, options.recipe)
    checkouts = {"before": options.before.resolve(), "now": HERE}
    wanted = [("before", "kernel"), *(("now", kind) for kind in KINDS)]
    contestants = {
        f"{side}: {kind}": _contestant(folder, options.recipe, kind, checkouts[side])
        for side, kind in wanted
    }
    losses = {name: each.ask(f"losses {GATE_STEPS}") for name, each in contestants.items()}
    step_s: dict[str, list[float]] = {name: [] for name in contestants}
    loads: list[float] = []
    names = {each: name for name, each in contestants.items()}
    for each in interleaved([*contestants.values()], options.rounds, loads):
        cpu_s, made = each.ask(f"run {options.steps}")
        step_s[names[each]].append(cpu_s / made)
    for each in contestants.values():
        each.quit()
    first, *_ = contestants
    reference = statistics.mean(losses[first][-10:])
    results = {}
    for name, seconds in step_s.items():
        loss = statistics.mean(losses[name][-10:])
        results[name] = {
            "step_cpu_s": summary(seconds),
            "speed_over_before": ratio_interval(step_s[first], seconds),
            "loss_of_the_last_10_steps": loss,
            "valid": "softmax" in name or abs(loss / reference - 1) < LOSS_TOLERANCE,
        }
        ratio = results[name]["speed_over_before"]
        print(
            f"{name:<24} {1000 * statistics.median(seconds):.0f} ms a step,"
            f" {ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}], loss {loss:.4f}"
            f" {'valid' if results[name]['valid'] else 'NOT VALID'}"
        )
    values = {
        "recipe": options.recipe,
        "before": commit(checkouts["before"]),
        "rounds": options.rounds,
        "steps": options.steps,
        "contestant_threads": 1,
        "loads": loads,
        "results": results,
    }
    print(write_record(f"okadfa_step_{options.recipe.removeprefix('okadfa-')}", values))


def _contestant(folder: Path, recipe: str, kind: str, checkout: Path) -> Contestant:
    """A process with the code of a checkout."""
    words = [sys.executable, __file__, "--worker", kind, "--folder", str(folder)]
    variables = {
        "PYTHONPATH": f"{checkout / 'src'}",
        "BRIMFUL_CACHE": str(folder / checkout.name),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{checkout.name}.inductor"),
    }
    name = f"{checkout.name}: {kind}"
    return Contestant(name, folder, [*words, "--recipe", recipe], {**os.environ, **variables})


def _prepare(folder: Path, name: str) -> None:
    """Write the training sequences in order as one file that every contestant reads."""
    import numpy as np

    from brimful.base.env import cache_folder
    from brimful.data.prepare import prepare
    from brimful.data.sequences import TokenSequences
    from brimful.recipe import load

    recipe = load(name, RECIPE)
    sequences = TokenSequences(
        prepare(recipe, cache_folder()).splits["train"], recipe.sequence_length, seed=recipe.seed
    )
    np.save(folder / "ids.npy", sequences.batch(0, min(len(sequences), 4096)).inputs_BT.numpy())


def _train(worker: Worker, name: str) -> None:
    """Train under the plan that brimful derives for one thread of this machine."""
    from brimful.base.env import wait_politely

    wait_politely()
    import numpy as np
    import torch

    from brimful.chains.devices import here
    from brimful.data.batches import Batch
    from brimful.hardware.host import keep_freed_memory
    from brimful.model.build import build
    from brimful.planning.derive import Facts, derive
    from brimful.recipe import load
    from brimful.rehearsal.kept_traces import kept_traces
    from brimful.training.method import Network, compiled, hidden_states_of

    recipe = load(name, [*RECIPE, *KINDS[worker.name]])
    assert recipe.tokenizer is not None
    vocabulary = int(recipe.tokenizer.vocabulary or 0)
    with kept_traces() as traces:
        plan = derive(recipe, here(recipe), traces, Facts(vocabulary=vocabulary))
    keep_freed_memory()
    device = torch.device("cpu")
    model = build(
        recipe, vocabulary=vocabulary, end_of_text_id=0, attention=plan.attention, device=device
    )
    model.train()
    shape = plan.micro_batches[0], recipe.sequence_length
    hidden_states = (
        compiled(model, shape=shape, say=print) if plan.compile else hidden_states_of(model)
    )
    ids_NT = torch.from_numpy(np.load(worker.folder / "ids.npy"))

    class Rows:
        def batch(self, first_sample: int, count: int) -> Batch:
            ids_BT = ids_NT[torch.arange(first_sample, first_sample + count) % len(ids_NT)]
            return Batch(ids_BT, torch.nn.functional.pad(ids_BT[:, 1:], (0, 1), value=-100))

    network: Any = Network(model, hidden_states, plan.loss_chunk)
    train_ours(worker, recipe, plan, network, Rows())


if __name__ == "__main__":
    main()
