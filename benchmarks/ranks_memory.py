"""Memory of each rank of a run, with the whole model (replicated) and with a part of it (sharded).

    python benchmarks/ranks_memory.py

Gloo ranks of this machine train a small Llama on ragged documents, one thread each. In the third
step of each rank two numbers are taken: `held`, the bytes of its weights and optimizer states, and
`peak`, the most that is allocated during the step: what is held, and on top of it the allocations of
the step as torch's profiler counts them. One process does the same for comparison. Sharding promises
that each rank holds 1 / ranks of the bytes, the largest part a little more where rows do not come out
even.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brimful.recipe import Recipe
from brimful.training import loop
from brimful.training.world import ALONE, World
from record import write_record
from several_devices import make_data, on_ranks, recipe_of, train

SHAPE = ("model.layers=8", "model.heads=4", "model.width=256", "training.steps=4")
STEP = 3


def held_bytes(parts: loop.Parts) -> int:
    """Return the bytes of weights, buffers and optimizer states of this rank, each storage once."""
    tensors = [*parts.network.model.parameters(), *parts.network.model.buffers()]
    for state in parts.optimizer.state.values():
        tensors += [each for each in state.values() if isinstance(each, Tensor)]
    own = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in own}
    return sum(storage.nbytes() for storage in storages.values())


def measured(act: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `act` returns, and the most bytes that were allocated beyond what was before."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        result = act()
    kineto = profiler.profiler.kineto_results
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in kineto.events()
        if event.name() == "[memory]"
    )
    running = peak = 0
    for _, num_bytes in changes:
        running += num_bytes
        peak = max(peak, running)
    return result, peak


def train_measured(recipe: Recipe, folder: Path, world: World = ALONE) -> None:
    """Train, and write what was measured into the folder, one file for each rank."""
    real = loop._step

    def step(parts: loop.Parts, progress: Any, *arguments: Any) -> Any:
        if progress.step != STEP - 1:
            return real(parts, progress, *arguments)
        held = held_bytes(parts)
        result, beyond = measured(lambda: real(parts, progress, *arguments))
        values = {"held_bytes": held, "peak_bytes": held + beyond}
        (folder / f"{recipe.run_name}-{world.rank}.json").write_text(json.dumps(values))
        return result

    loop._step = step  # type: ignore[assignment]  # of this process, which ends with the run
    train(recipe, world)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    os.environ |= {"BRIMFUL_CACHE": str(folder / "cache"), "BRIMFUL_RUNS": str(folder / "runs")}
    make_data(folder)
    rows: list[dict[str, Any]] = []
    for spread, size in (("replicated", 1), ("replicated", 2), ("sharded", 2), ("sharded", 4)):
        name = f"{spread}-{size}"
        changes = (f"run.name={name}", f"plan.spread={spread}", *SHAPE)
        recipe = recipe_of("documents", folder, *changes)

        def act(world: World, recipe: Recipe = recipe) -> None:
            train_measured(recipe, folder, world)

        assert on_ranks(size, act) == [0] * size, name
        ranks = [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]
        rows.append({"spread": spread, "ranks": size, "each": ranks})
        print(rows[-1], flush=True)
    whole = rows[0]["each"][0]["held_bytes"]
    for row in rows:
        most = max(each["held_bytes"] for each in row["each"])
        promised = whole / (row["ranks"] if row["spread"] == "sharded" else 1)
        row["held_beside_promised"] = most / promised
    print(write_record("ranks_memory", {"whole_held_bytes": whole, "runs": rows}))


if __name__ == "__main__":
    main()
