"""The operators to measure exist, are what they say they are, and cover what a step does."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.hardware.operators import GPU_SCALE, Case, cases
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES

CPU = torch.device("cpu")
CASES = cases(CPU, ("fp32", "bf16"))
SMALL = [case for case in CASES if case.num_bytes < 1 << 21]


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_every_class_is_measured_in_fp32_or_16_bit() -> None:
    assert {case.class_name for case in CASES} == set(CLASSES)
    assert {case.class_name for case in CASES if case.flop} == set(MATRIX_CLASSES)


def test_where_16_bit_does_not_pay_4_bit_weights_are_unpacked_into_fp32() -> None:
    only_fp32 = cases(CPU, ("fp32",))

    assert {case.class_name for case in only_fp32} == set(CLASSES)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.name} {case.dtype}")
def test_an_operator_runs_and_is_the_one_it_says(case: Case) -> None:
    names = _Names()
    with torch.no_grad():
        run = case.make(CPU)
        with names:
            run()

    assert case.operator in names.names | {"", "dequantise_nf4"}


def test_a_gpu_gets_larger_ones() -> None:
    (large,) = (
        case
        for case in cases(torch.device("cuda"), ("fp32",))
        if case.name.startswith(f"product {1024 * GPU_SCALE}x1024x1024")
    )

    assert large.flop == 2 * 1024 * GPU_SCALE * 1024 * 1024
