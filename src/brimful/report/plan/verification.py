"""What a plan keeps, what it changes, and what one real step showed of it."""

from collections.abc import Iterator, Sequence

from brimful.planning.equivalence import Equivalence
from brimful.rehearsal.verify import Check, Verification
from brimful.report.table import Table
from brimful.report.views import Block, Heading, Paragraph, text


def verification_blocks(verification: Verification) -> Iterator[Block]:
    """Claims first, then how they were tested, then every comparison with its tolerance."""
    yield from _equivalence(verification.equivalence)
    yield Heading(
        f"One optimizer step as planned and one in the plainest manner, on {verification.ran_on}"
    )
    told = {
        "plainest": "fp32, one sequence at a time, eager attention, the whole loss at once, a loop"
        " over tensors for AdamW",
        "both": "the same fresh weights, random tokens in sequences of random lengths, the same"
        " states of AdamW",
        "reduced": "; ".join(verification.reduced),
        "not tested": "; ".join(verification.untested),
        "note B104": "; ".join(verification.told),
    }
    yield from (Paragraph(f"{name}: {each}") for name, each in told.items() if each)
    yield from text("; ".join(verification.shown))
    plainest, planned = verification.losses
    yield Paragraph(f"loss {plainest:.6f} in the plainest manner, {planned:.6f} as planned")
    yield _table(verification.checks)
    precision = verification.precision
    if failed := [check.name for check in verification.checks if not check.passed]:
        names = ", ".join(failed)
        yield Paragraph(
            f"NOT VERIFIED: {names} off by more than rounding in {precision} explains.", "missing"
        )
    else:
        yield Paragraph(
            f"verified: every difference is within what rounding in {precision} explains."
        )


def _equivalence(equivalence: Equivalence) -> Iterator[Block]:
    """What is kept, and what is changed."""
    yield Heading("The plan keeps exactly")
    yield from (Paragraph(f"- {kept}") for kept in equivalence.keeps)
    yield Heading("It changes, within rounding where nothing else is said")
    yield from (Paragraph(f"- {change}") for change in equivalence.changes or ("nothing",))


def _table(checks: Sequence[Check]) -> Table:
    rows = []
    for check in checks:
        what = "1 - cosine" if check.name.endswith("direction") else "relative"
        verdict = "ok" if check.passed else "TOO FAR"
        difference, tolerance = f"{check.difference:.1e}", f"{check.tolerance:.1e}"
        rows.append((check.name, difference, tolerance, verdict, what))
    return Table(("", "Difference", "Allowed", "", "Measured as"), tuple(rows))
