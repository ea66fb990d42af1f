import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as torch's documents write it

from brimful.hardware.rates import CLASSES
from brimful.rehearsal.kernels import FP32_FUNCTIONS, OnCuda, fused_attention, kernel_for
from brimful.rehearsal.recorder import Recorder


def _heads(count: int, *, head: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros((2, count, 40, head), dtype=dtype)


@pytest.mark.parametrize(
    ("query", "key", "options", "kernel"),
    [
        (_heads(8), _heads(8), {}, "flash"),
        (_heads(8), _heads(2), {"gqa": True}, "flash"),
        (_heads(8, head=256), _heads(8, head=256), {}, "flash"),
        (_heads(8, head=320), _heads(8, head=320), {}, "efficient"),
        (_heads(8), _heads(8), {"has_mask": True}, "efficient"),
        (_heads(8), _heads(8), {"flash": False}, "efficient"),
        (_heads(8), _heads(2), {"gqa": True, "flash": False}, "math"),
        (_heads(8, head=36), _heads(8, head=36), {"flash": False}, "math"),
        (
            _heads(8, head=36, dtype=torch.float32),
            _heads(8, head=36, dtype=torch.float32),
            {},
            "efficient",
        ),
        (_heads(8, dtype=torch.float32), _heads(8, dtype=torch.float32), {}, "efficient"),
    ],
    ids=[
        "bf16",
        "grouped heads",
        "head 256",
        "head 320",
        "mask",
        "T4",
        "T4 with grouped heads",
        "unaligned head",
        "unaligned fp32",
        "fp32",
    ],
)
def test_the_kernel_is_the_one_torch_picks(
    query: torch.Tensor, key: torch.Tensor, options: dict[str, bool], kernel: str
) -> None:
    values = {"has_mask": False, "gqa": False, "flash": True} | options

    assert kernel_for(query, key, dropout=0.0, **values) == kernel  # type: ignore[arg-type]


@pytest.mark.parametrize(("kernel", "lse_rows"), [("flash", 40), ("efficient", 64)])
def test_a_fused_kernel_saves_its_inputs_its_output_and_one_number_per_row(
    kernel: str, lse_rows: int
) -> None:
    query, key, value = (
        torch.zeros((2, 40, 4, 16), dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    saved: list[torch.Tensor] = []

    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (saved.append(tensor), tensor)[1], lambda tensor: tensor
    ):
        fused_attention(query, key, value, kernel=kernel)  # type: ignore[arg-type]

    assert [tuple(tensor.shape) for tensor in saved] == [(2, 40, 4, 16)] * 4 + [(2, 4, lse_rows)]
    assert saved[-1].dtype == torch.float32


def test_gradients_of_a_fused_kernel_have_the_shapes_of_its_inputs() -> None:
    query = torch.zeros((2, 40, 4, 16), requires_grad=True)
    key, value = (torch.zeros((2, 40, 2, 16), requires_grad=True) for _ in range(2))

    grads = torch.autograd.grad(
        fused_attention(query, key, value, kernel="flash").sum(), (query, key, value)
    )

    assert [grad.shape for grad in grads] == [query.shape, key.shape, value.shape]


@pytest.mark.parametrize(("causal", "flop"), [(True, 2), (False, 4)])
@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_a_fused_kernel_tells_what_it_computes_and_moves(
    kernel: str, flop: int, *, causal: bool
) -> None:
    """2 sequences of 40 rows, 4 query heads of 16 on 2 key heads: five products backward for two
    forward.
    """
    query = torch.zeros((2, 40, 4, 16), dtype=torch.bfloat16, requires_grad=True)
    key, value = (
        torch.zeros((2, 40, 2, 16), dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
    )
    recorder = Recorder()
    for _ in range(2):
        recorder.begin("forward")

    with recorder:
        fused_attention(query, key, value, kernel=kernel, causal=causal).sum().backward()  # type: ignore[arg-type]
    work = recorder.finish().work

    assert work is not None
    forward, backward = (
        work.only(work.classes_W == CLASSES.index(name))
        for name in ("attention", "attention backward")
    )
    scores = 2 * 4 * 40 * 40
    assert (forward.flop(), backward.flop()) == (flop * scores * 16, 2.5 * flop * scores * 16)
    assert [each.tolist() for each in (forward.batch_W, forward.m_W, forward.n_W, forward.k_W)] == [
        [8],
        [40],
        [40],
        [16],
    ]
    queries_bytes = 2 * 2 * 40 * 4 * 16
    lse_bytes = 4 * 2 * 4 * (40 if kernel == "flash" else 64)
    assert forward.bytes_W.tolist() == [
        3 * queries_bytes + lse_bytes
    ]  # keys and values are half of it each
    assert backward.bytes_W[0] >= 6 * queries_bytes


def test_scores_are_stored_only_by_the_math_kernel() -> None:
    query, key = _heads(8), _heads(2)
    sizes: list[int] = []

    with (
        OnCuda(flash=False),
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (sizes.append(tensor.numel()), tensor)[1], lambda tensor: tensor
        ),
    ):
        F.scaled_dot_product_attention(
            query.requires_grad_(), key, key, is_causal=True, enable_gqa=True
        )

    assert 2 * 8 * 40 * 40 in sizes


def test_under_autocast_cudas_list_of_fp32_operators_holds() -> None:
    half = torch.zeros(3, dtype=torch.bfloat16)

    with torch.autocast("cpu"):
        with OnCuda(flash=True):
            assert {
                torch.pow(half, 2).dtype,
                torch.rsqrt(half).dtype,
                F.softmax(half, -1).dtype,
            } == {torch.float32}
        assert torch.pow(half, 2).dtype == torch.bfloat16
    assert torch.rsqrt in FP32_FUNCTIONS


def test_an_asynchronous_copy_to_the_device_is_a_copy() -> None:
    batch = torch.zeros(4)

    with OnCuda(flash=True):
        assert batch.to("cpu", non_blocking=True).data_ptr() != batch.data_ptr()
    assert batch.to("cpu", non_blocking=True).data_ptr() == batch.data_ptr()
