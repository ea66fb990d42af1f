import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from brimful.rehearsal.scratch import scratch_bytes

ADD, ADD_, LOGSUMEXP, SOFTMAX_BACKWARD = (
    torch.ops.aten.add.Tensor,
    torch.ops.aten.add_.Tensor,
    torch.ops.aten.logsumexp.default,
    torch.ops.aten._softmax_backward_data.default,
)


def test_logsumexp_holds_its_exponentials_on_every_device() -> None:
    logits = torch.zeros(3, 50)

    for cuda in (True, False):
        assert scratch_bytes(LOGSUMEXP, (logits, [1]), logits.logsumexp(1), cuda=cuda) == [12, 600]


def test_a_cpu_converts_operands_of_mixed_types_and_cuda_does_not() -> None:
    total, part = torch.zeros(20), torch.zeros(20, dtype=torch.bfloat16)

    assert scratch_bytes(ADD_, (total, part), total, cuda=False) == [80]
    assert scratch_bytes(ADD_, (total, part), total, cuda=True) == []


def test_cuda_multiplies_gradient_and_softmax_in_a_tensor_of_its_own() -> None:
    """pytorch#72450: 15,099,495,424 bytes of a softmax of 1,509,949,440 numbers in bf16; 4 bytes of
    softmax, 2 of its gradient and 4 of this tensor each.
    """
    grad, half = torch.zeros(4, 50), torch.zeros(4, 50, dtype=torch.float16)

    for given, kept, out, tensor in [
        (grad, torch.float32, grad, 800),
        (grad, torch.float16, half, 800),
        (half, torch.float16, half, 400),
    ]:
        args = (given, given, -1, kept)
        assert scratch_bytes(SOFTMAX_BACKWARD, args, out, cuda=True) == [tensor]
        assert scratch_bytes(SOFTMAX_BACKWARD, args, out, cuda=False) == []


def test_equal_types_and_scalars_need_no_conversion() -> None:
    one, half = torch.zeros(20), torch.zeros((), dtype=torch.bfloat16)

    assert scratch_bytes(ADD, (one, one), one, cuda=False) == []
    assert scratch_bytes(ADD, (one, half), one, cuda=False) == []


@pytest.mark.parametrize("cuda", [False])
def test_the_profiler_sees_the_same_peak(cuda: bool) -> None:
    logits, total, part = (
        torch.zeros(64, 500),
        torch.zeros(5000),
        torch.zeros(5000, dtype=torch.bfloat16),
    )

    for func, args, out in [
        (LOGSUMEXP, (logits, [1]), torch.zeros(64)),
        (ADD_, (total, part), None),
        (SOFTMAX_BACKWARD, (logits, logits, -1, torch.float32), logits),
    ]:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            func(*args)
        peak = live = 0
        for event in sorted(
            (e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"),
            key=lambda event: event.start_ns(),
        ):
            live += event.nbytes()
            peak = max(peak, live)
        made = 0 if out is None else out.nbytes
        assert (
            peak == sum(scratch_bytes(func, args, total if out is None else out, cuda=cuda)) + made
        )
