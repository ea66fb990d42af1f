"""What `plan --verify` prints."""

import math
from dataclasses import replace

from syrupy.assertion import SnapshotAssertion

from brimful.planning.equivalence import Equivalence
from brimful.rehearsal.verify import Check, Verification
from brimful.report.plan.verification import WIDTH, verification_lines

GOOD = Verification(
    equivalence=Equivalence(keeps=("the sequences",), changes=()),
    precision="bf16",
    ran_on="a CPU",
    reduced=("blocks 12 -> 2", "width 768 -> 128"),
    untested=("kernels of a T4",),
    told=(),
    shown=("checked: the first update moved 3 of 3 tensors", "of 3 rows none sees another"),
    losses=(7.5, 7.6),
    checks=(Check("loss", 1e-6, 1e-4), Check("gradient direction", 2e-5, 3e-4)),
)


def test_claims_reductions_and_what_was_not_tested_are_said(snapshot: SnapshotAssertion) -> None:
    lines = verification_lines(GOOD)
    assert lines == snapshot
    assert not any(line.startswith("  note:") for line in lines)
    assert max(map(len, verification_lines(replace(GOOD, reduced=GOOD.reduced * 9)))) <= WIDTH


def test_every_comparison_stands_beside_its_tolerance(snapshot: SnapshotAssertion) -> None:
    table = "\n".join(verification_lines(GOOD))
    assert table == snapshot
    assert (
        verification_lines(GOOD)[-1]
        == "verified: every difference is within what rounding in bf16 explains."
    )


def test_what_fails_is_named(snapshot: SnapshotAssertion) -> None:
    lines = verification_lines(
        replace(
            GOOD, checks=(Check("loss", math.nan, 1e-4), Check("gradient direction", 1e-5, 3e-4))
        )
    )
    assert "TOO FAR" in "\n".join(lines)
    assert lines[-1] == snapshot
