"""What `plan --verify` prints."""

import math
from dataclasses import replace

from syrupy.assertion import SnapshotAssertion

from brimful.planning.equivalence import Equivalence
from brimful.rehearsal.verify import Check, Verification
from brimful.report.plan.verification import verification_blocks
from brimful.report.terminal import told

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


def lines_of(verification: Verification) -> list[str]:
    return told(verification_blocks(verification), 120).plain.splitlines()


def test_claims_tests_and_every_comparison_beside_its_tolerance_are_told(
    snapshot: SnapshotAssertion,
) -> None:
    assert lines_of(GOOD) == snapshot
    assert max(map(len, lines_of(replace(GOOD, reduced=GOOD.reduced * 9)))) <= 120


def test_what_fails_is_named(snapshot: SnapshotAssertion) -> None:
    lines = lines_of(
        replace(
            GOOD, checks=(Check("loss", math.nan, 1e-4), Check("gradient direction", 1e-5, 3e-4))
        )
    )
    assert "TOO FAR" in "\n".join(lines)
    assert lines[-1] == snapshot
