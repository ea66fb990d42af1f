"""What a plan keeps, what it changes, and what one real step showed of it, as lines for a
terminal.
"""

import textwrap
from collections.abc import Iterator, Sequence

from brimful.planning.equivalence import Equivalence
from brimful.rehearsal.verify import Check, Verification

WIDTH = 120
"""Columns."""


def verification_lines(verification: Verification) -> list[str]:
    """Claims first, then how they were tested, then every comparison with its tolerance."""
    lines = [
        *equivalence_lines(verification.equivalence),
        f"One optimizer step as planned and one in the plainest manner, on {verification.ran_on}:",
        "  plainest: fp32, one sequence at a time, eager attention, the whole loss at once, a loop"
        " over tensors for AdamW",
        "  both: the same fresh weights, random tokens in sequences of random lengths, the same"
        " states of AdamW",
    ]
    lines += (
        _listed("  reduced: ", verification.reduced)
        + _listed("  not tested: ", verification.untested)
        + _listed("  note B104: ", verification.told)
        + _listed("  ", verification.shown)
    )
    lines += [
        f"  loss {verification.losses[0]:.6f} in the plainest manner, {verification.losses[1]:.6f}"
        " as planned"
    ]
    lines += list(_table(verification.checks))
    precision = verification.precision
    if failed := [check.name for check in verification.checks if not check.passed]:
        names = ", ".join(failed)
        return [*lines, f"NOT VERIFIED: {names} off by more than rounding in {precision} explains."]
    return [*lines, f"verified: every difference is within what rounding in {precision} explains."]


def equivalence_lines(equivalence: Equivalence) -> list[str]:
    """What is kept, and what is changed."""
    changes = [f"  - {change}" for change in equivalence.changes] or ["  - nothing"]
    return [
        "The plan keeps exactly:",
        *(f"  - {kept}" for kept in equivalence.keeps),
        "It changes, within rounding where nothing else is said:",
        *changes,
    ]


def _listed(label: str, entries: Sequence[str]) -> list[str]:
    return textwrap.wrap(
        "; ".join(entries), WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
    )


def _table(checks: Sequence[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    yield f"  {'':<{width}}  {'difference':>10}  {'allowed':>8}"
    for check in checks:
        what = "1 - cosine" if check.name.endswith("direction") else "relative"
        verdict = "ok" if check.passed else "TOO FAR"
        yield (
            f"  {check.name:<{width}}  {check.difference:>10.1e}  {check.tolerance:>8.1e} "
            f" {verdict:<7}  ({what})"
        )
