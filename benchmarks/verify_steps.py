"""How far planned steps are from the plainest ones, beside the tolerances of `brimful plan
--verify`.

python benchmarks/verify_steps.py [--largest-flop FLOP]

Shipped recipes and one recipe with 1 to 32 blocks, in every precision and with every attention
kernel, on this machine's CPU: three micro-batches, the last one smaller, several pieces of the
loss, half of the recipes with recomputation. `tables.py verify` makes the table of
docs/verify.md of the record.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from brimful.hardware import catalog
from brimful.planning.plan import Plan
from brimful.recipe import Recipe, load, shipped_names
from brimful.rehearsal import verify as verifying
from brimful.rehearsal.verify import UNIT_ROUNDOFF, Verification, verify
from record import write_record

DEVICE = catalog.get("NVIDIA A100-SXM4-80GB")
DEPTHS = (1, 4, 16, 32)
BLANK = Plan(
    recipe="",
    device={},
    choices=(),
    micro_batches=(1,),
    precision="fp32",
    attention="sdpa",
    recompute=False,
    compile=False,
    optimizer="fused",
    loss_chunk=64,
    loader_workers=1,
    threads=None,
    parameters=1,
    sequence_length=1,
    total_steps=1,
    predicted={},
    memory_terms={},
    time_terms={},
)


def main() -> None:
    """Verify every case, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest-flop", type=float, default=1e10)
    largest_flop = parser.parse_args().largest_flop
    results = []
    for name, recipe, plan in _cases():
        most_flop = 1e12 if "blocks" in name else largest_flop  # depth is what these are about
        verifying.MOST_FLOP = dict.fromkeys(verifying.MOST_FLOP, most_flop)
        verification = verify(recipe, plan, DEVICE)
        results.append(
            {
                "case": name,
                "precision": plan.precision,
                "attention": plan.attention,
                "recompute": plan.recompute,
            }
            | _shown(verification)
        )
        print(results[-1], flush=True)
    print(write_record("verify_steps", {"results": results}))


def _cases() -> Iterator[tuple[str, Recipe, Plan]]:
    for number, name in enumerate(shipped_names()):
        recipe = load(name)
        for precision in UNIT_ROUNDOFF:
            attention = ("sdpa", "brimful_blocks", "brimful_expanded")[number % 3]
            yield name, recipe, _plan(recipe, precision, attention, recompute=number % 2 == 0)
    for depth in DEPTHS:
        recipe = load(
            "quickstart", [f"model.layers={depth}", "batch.sequences=5", "sequence_length=64"]
        )
        yield from (
            (
                f"quickstart, {depth} blocks",
                recipe,
                _plan(recipe, precision, "sdpa", recompute=False),
            )
            for precision in UNIT_ROUNDOFF
        )


def _plan(recipe: Recipe, precision: str, attention: str, *, recompute: bool) -> Plan:
    """Three micro-batches, the last one smaller."""
    micro = max(1, recipe.effective_batch * 2 // 5)
    sizes = (micro, micro, recipe.effective_batch - 2 * micro)
    values: dict[str, Any] = {
        "recipe": recipe.name,
        "micro_batches": sizes,
        "precision": precision,
        "attention": attention,
        "recompute": recompute,
    }
    return replace(
        BLANK,
        **values,
        sequence_length=recipe.sequence_length,
        loss_chunk=micro * recipe.sequence_length // 3,
    )


def _shown(verification: Verification) -> dict[str, object]:
    return {
        "reduced": verification.reduced,
        "checks": [asdict(check) | {"passed": check.passed} for check in verification.checks],
    }


if __name__ == "__main__":
    main()
