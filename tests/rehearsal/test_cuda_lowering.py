import torch
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.rehearsal.cuda_lowering import FP32_OPERATORS, FP32_RESULTS, lowered_for_cuda


def test_autocast_computes_log_softmax_in_fp32_as_on_cuda_and_only_inside() -> None:
    """A CPU's autocast leaves it in 16 bit."""
    logits = torch.randn(3, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        with lowered_for_cuda(flash=True):
            inside = torch.log_softmax(logits, -1)
            asked = torch.log_softmax(logits, -1, dtype=torch.bfloat16)
        after = torch.log_softmax(logits, -1)

    assert (inside.dtype, asked.dtype, after.dtype) == (torch.float32, *[torch.bfloat16] * 2)
    torch.testing.assert_close(inside, torch.log_softmax(logits.float(), -1))


def test_torch_has_every_operator_of_the_list() -> None:
    for name in (*FP32_OPERATORS, *FP32_RESULTS):
        packet, _, overload = name.partition(".")

        assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name


def test_attention_and_dropout_call_the_operators_of_cuda_kernels() -> None:
    real = F.scaled_dot_product_attention, F.dropout
    heads = torch.empty(2, 4, 64, 32, dtype=torch.bfloat16, device="meta")
    with lowered_for_cuda(flash=True):
        attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        kept = F.dropout(torch.ones(100), 0.5)

    assert attended.shape == heads.shape
    assert set(kept.unique().tolist()) <= {0.0, 2.0}
    assert (F.scaled_dot_product_attention, F.dropout) == real
