import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - as torch's documents write it
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import eager_attention_forward

from brimful.base.types import JsonDict
from brimful.hardware.rates import CLASSES
from brimful.planning.offload import offloaded_bytes
from brimful.planning.step import StepSpec, canonical
from brimful.rehearsal.kernels import FP32_FUNCTIONS, NotOnCuda, OnCuda, fused_attention, kernel_for
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.training import record_training


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


@pytest.mark.parametrize("autocast", [False, True])
def test_cuda_takes_fp16_scores_without_a_copy_in_fp32(autocast: bool) -> None:
    """aten/native/SoftMax.cpp, half_to_float: of fp16 alone; bf16 is converted on every device."""
    for dtype, copies in ((torch.float16, 0), (torch.bfloat16, 2)):
        with (
            FakeTensorMode(),
            OnCuda(flash=False),
            torch.autocast("cpu", torch.float16, enabled=autocast),
        ):
            scores = torch.zeros(3, 40, dtype=dtype, requires_grad=True)
            recorder = Recorder(cuda=True)
            with recorder:
                made = F.softmax(scores, dim=-1, dtype=torch.float32)
                (grad,) = torch.autograd.grad(made.sum(), scores)
            trace = recorder.finish()

        assert made.dtype == torch.float32
        assert grad.dtype == dtype
        assert sum("_to_copy" in trace.places[place] for place in trace.places_S) == copies


@pytest.mark.parametrize(
    ("dtype", "bytes_a_score"),
    [(torch.float32, 16), (torch.bfloat16, 16), (torch.float16, 14)],
    ids=["fp32", "bf16", "fp16"],
)
def test_attention_written_out_takes_what_a_gpu_measured(
    dtype: torch.dtype, bytes_a_score: int
) -> None:
    """A Tesla T4 measured 16 bytes a score in fp32 and 14 in fp16 while the backward pass goes
    through the softmax (fitcheck-llm 0.3.1, 12 rows).
    """
    module = torch.nn.Module()
    module.num_key_value_groups = 1  # type: ignore[assignment]
    scores = 2 * 4 * 256 * 256
    gc.disable()  # a cycle would keep tensors for longer
    try:
        with FakeTensorMode(), OnCuda(flash=False):
            recorder = Recorder(cuda=True)
            query, key, value = (
                torch.zeros(2, 4, 256, 1, dtype=dtype, requires_grad=True) for _ in range(3)
            )
            mask = torch.zeros(1, 1, 256, 256, dtype=dtype)
            recorder.seed(mask, "inputs", "mask")
            with recorder:
                attended = eager_attention_forward(module, query, key, value, mask, scaling=0.1)[0]
                attended.sum().backward()
                del attended
            trace = recorder.finish()
    finally:
        gc.enable()

    alive = trace.alive_at(int(trace.live_E().argmax()))
    large = [size for size in (int(trace.sizes_S[each]) for each in alive) if size >= 2 * scores]

    assert sum(large) == bytes_a_score * scores


def test_an_asynchronous_copy_to_the_device_is_a_copy() -> None:
    batch = torch.zeros(4)

    with OnCuda(flash=True):
        assert batch.to("cpu", non_blocking=True).data_ptr() != batch.data_ptr()
    assert batch.to("cpu", non_blocking=True).data_ptr() == batch.data_ptr()


def test_a_tensor_comes_back_with_its_shape() -> None:
    there = NotOnCuda()
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16).t()

    again = there.back(there.away(tensor))

    assert (again.shape, again.stride(), again.dtype) == (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )


def test_a_recorded_step_holds_no_input_of_a_block_when_its_backward_pass_begins(
    llama_values: JsonDict,
) -> None:
    config = LlamaConfig(**llama_values)

    def held_bytes(*, offload: bool, cuda: bool = True) -> int:
        spec = StepSpec(
            canonical(llama_values), 128, recompute=True, offload=offload, cuda=cuda, loss_chunk=64
        )
        trace = record_training(spec, config, 4)
        return int(trace.live_E()[trace.marks["backward"] - 1])

    spec = StepSpec(canonical(llama_values), 128, recompute=True, offload=True)
    inputs = offloaded_bytes(spec, 4)

    assert held_bytes(offload=False) - held_bytes(offload=True) == inputs
    # The memory of a CPU is that of the host.
    assert held_bytes(offload=True, cuda=False) >= held_bytes(offload=False, cuda=False)
