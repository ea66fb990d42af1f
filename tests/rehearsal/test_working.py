"""Arithmetic and bytes of operators beside hand counts, closed forms, and torch's own counter on
real steps.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixture_types import Make, MakeStep
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as torch's documents write it
from torch.utils.flop_counter import FlopCounterMode
from transformers import MixtralConfig

from brimful.base.types import JsonDict
from brimful.hardware.rates import CLASSES
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.work import DTYPES, PHASES, Work
from brimful.rehearsal.models import config_of
from brimful.rehearsal.optimizers import optimizer_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.training import Watcher, prepare, record_training, run_steps

BATCH, LENGTH, WIDTH, INNER, GROUP, VOCABULARY, BLOCKS = 4, 64, 64, 160, 32, 512, 2
TOKENS = BATCH * LENGTH
LLAMA = BLOCKS * (2 * WIDTH * WIDTH + 2 * WIDTH * GROUP + 3 * WIDTH * INNER)
"""Weights of the blocks' linear layers; the head has VOCABULARY x WIDTH more."""
GPT2 = BLOCKS * 12 * WIDTH * WIDTH
HEAD = VOCABULARY * WIDTH
SCORES = BLOCKS * 4 * BATCH * LENGTH * LENGTH * WIDTH // 2
"""FLOP of attention forward: two products of L x L x d for every head, of which a causal kernel
makes half.
"""


@functools.cache
def _work(spec: StepSpec) -> Work:
    work = record_training(spec, config_of(spec), BATCH).work
    assert work is not None
    return work


def _cuda(step: MakeStep, family: str = "llama", **changes: Any) -> Work:
    return _work(step(family, cuda=True, weights="bf16", **changes)).part("micro-batch")


def _of(function: Make, *tensors: Tensor, phase: str = "forward") -> Work:
    """Operators of a function, its tensors known from before."""
    recorder = Recorder()
    for tensor in tensors:
        recorder.seed(tensor, "weights", "w")
    for _ in range(2):  # a first step is not written down
        recorder.begin(phase)
    with recorder:
        kept = function(*tensors)
    recorder.begin("between steps")
    work = recorder.finish().work
    del kept
    assert work is not None
    return work


def _flop(work: Work, class_name: str) -> float:
    return work.only(work.classes_W == CLASSES.index(class_name)).flop()


@pytest.mark.parametrize(("family", "weights"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_a_step_multiplies_six_times_its_weights_and_three_and_a_half_times_its_scores(
    step: MakeStep, family: str, weights: int
) -> None:
    """Forward 2 N, backward 4 N; a flash kernel makes five products backward for two forward."""
    work = _cuda(step, family)

    assert _flop(work, "matrix") == 6 * (weights + HEAD) * TOKENS
    assert _flop(work, "attention") == SCORES
    assert _flop(work, "attention backward") == 2.5 * SCORES


@pytest.mark.parametrize(
    ("family", "weights"), [("llama", LLAMA - BLOCKS * WIDTH * INNER), ("gpt2", GPT2)]
)
def test_recomputation_is_one_forward_pass_of_the_blocks_more(
    step: MakeStep, family: str, weights: int
) -> None:
    """Up to the last tensor that the backward pass needs: not a Llama block's last product; in
    GPT-2 dropout comes after it.
    """
    plain, recomputed = (_cuda(step, family, recompute=on) for on in (False, True))

    again = recomputed.only(recomputed.phases_W == PHASES.index("recomputation"))
    assert again.flop() == recomputed.flop() - plain.flop() == 2 * weights * TOKENS + SCORES


def test_adapters_save_the_gradients_of_the_weights_but_for_their_own(step: MakeStep) -> None:
    """2 N forward and 2 N for gradients that pass through, of which the first block's q, k and v
    need none without an adapter before them.
    """
    rank = 4
    inputs_and_outputs = BLOCKS * (2 * (WIDTH + WIDTH) + 2 * (WIDTH + GROUP) + 3 * (WIDTH + INNER))
    flop = _flop(_cuda(step, adapter=Lora(rank)), "matrix")

    least = 4 * (LLAMA + HEAD) * TOKENS + 6 * rank * inputs_and_outputs * TOKENS
    unused = 2 * TOKENS * (WIDTH * (WIDTH + 2 * GROUP) + 3 * rank * WIDTH)
    assert flop == least - unused


def test_an_evaluation_batch_is_a_forward_pass_of_twice_the_sequences(step: MakeStep) -> None:
    work = _work(step(cuda=True, weights="bf16")).part("evaluation")

    assert work.flop() == 2 * (2 * (LLAMA + HEAD) * TOKENS + SCORES)


def test_experts_multiply_only_the_rows_that_were_sent_to_them() -> None:
    """Two of four experts for each token, in torch's grouped products."""
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    work = _work(
        StepSpec(canonical(config.to_dict()), LENGTH, weights="bf16", accumulates=False)
    ).part("micro-batch")

    active = BLOCKS * (2 * WIDTH * WIDTH + 2 * WIDTH * GROUP + 4 * WIDTH + 2 * 3 * WIDTH * 96)
    assert _flop(work, "matrix") == 6 * (active + HEAD) * TOKENS


@pytest.mark.long_but("llama, uneven chunks")
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"autocast": "bf16", "loss_chunk": 50}),
        ("gpt2", {"recompute": True}),
        ("llama", {"adapter": Lora(4), "recompute": True}),
        ("bert", {"accumulates": False}),
    ],
    ids=["llama, uneven chunks", "gpt2, recomputed", "LoRA, recomputed", "bert"],
)
def test_torch_counts_as_many_flop_in_the_real_step(
    step: MakeStep, family: str, changes: JsonDict
) -> None:
    spec = step(family, attention="eager", sequence_length=32, **changes)
    model = real_model(spec, config_of(spec))
    prepare(spec, model)
    optimizer = optimizer_of(
        spec, [parameter for parameter in model.parameters() if parameter.requires_grad]
    )
    counter = FlopCounterMode(display=False)

    with counter:
        run_steps(model, optimizer, spec, BATCH, Watcher())

    work = _work(spec)
    assert (
        counter.get_total_flops()
        == 2 * work.part("micro-batch").flop() + work.part("further micro-batch").flop()
    )


def _floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


ROWS = torch.zeros(7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "tensors", "class_name", "moved_bytes"),
    [
        (torch.add, (_floats(10, 100), _floats(10, 100)), "pointwise", 3 * 4000),
        (torch.add, (_floats(10, 100), _floats(10, 1).expand(10, 100)), "pointwise", 2 * 4000 + 40),
        (torch.Tensor.add_, (_floats(10, 100), _floats(10, 100)), "pointwise", 3 * 4000),
        (torch.exp, (_floats(10, 100, dtype=torch.bfloat16),), "transcendental", 2 * 2000),
        (torch.sum, (_floats(10, 100),), "reduction", 4000 + 4),
        (lambda x: x[:5] + 1, (_floats(10, 100),), "pointwise", 2 * 2000),
        (
            torch.Tensor.copy_,
            (_floats(10, 100), _floats(10, 100, dtype=torch.bfloat16)),
            "copy",
            4000 + 2000,
        ),
        (torch.Tensor.zero_, (_floats(10, 100),), "copy", 4000),
        (torch.zeros_like, (_floats(10, 100),), "copy", 4000),
        (lambda x: x.t().contiguous(), (_floats(10, 100),), "copy", 2 * 4000),
        (F.embedding, (ROWS, _floats(50, 20)), "gather", 7 * 8 + 2 * 7 * 80),
        (lambda x, index: x[index], (_floats(50, 20), ROWS), "gather", 7 * 8 + 2 * 7 * 80),
        (
            lambda x, y: x.index_put_((ROWS,), y),
            (_floats(50, 20), _floats(7, 20)),
            "gather",
            7 * 8 + 2 * 7 * 80,
        ),
        (
            lambda x, y: x.scatter_add_(0, ROWS, y),
            (_floats(50), _floats(7)),
            "gather",
            7 * 8 + 3 * 7 * 4,
        ),
        (lambda x: F.nll_loss(x, ROWS), (_floats(7, 100),), "reduction", 7 * 8 + 4 + 2 * 4),
        (
            lambda x, y, out: torch.mm(x, y, out=out),
            (_floats(10, 100), _floats(100, 30), _floats(10, 30)),
            "matrix",
            4000 + 12_000 + 1200,
        ),
        (
            lambda x: (x.view(100, 10).t().split(3), x.detach(), x[None].expand(4, 10, 100)),
            (_floats(10, 100),),
            "",
            0,
        ),
    ],
    ids=[
        "add",
        "expanded",
        "in place",
        "16 bit",
        "sum",
        "slice",
        "copy",
        "fill",
        "like",
        "transposed copy",
        "embedding",
        "rows",
        "rows put",
        "rows added",
        "picked",
        "into a given tensor",
        "views",
    ],
)
def test_an_operator_reads_its_operands_and_writes_its_result(
    function: Make, tensors: tuple[Tensor, ...], class_name: str, moved_bytes: int
) -> None:
    work = _of(function, *tensors)

    assert [CLASSES[index] for index in work.classes_W] == ([class_name] if class_name else [])
    assert work.bytes_W.sum() == work.fused_bytes_W.sum() == moved_bytes


@pytest.mark.parametrize(
    ("function", "tensors", "shape"),
    [
        (torch.mm, (_floats(10, 100), _floats(100, 30)), (1, 10, 30, 100)),
        (F.linear, (_floats(2, 5, 100), _floats(30, 100), _floats(30)), (1, 10, 30, 100)),
        (torch.mv, (_floats(10, 100), _floats(100)), (1, 10, 1, 100)),
        (torch.bmm, (_floats(3, 4, 5), _floats(3, 5, 6)), (3, 4, 6, 5)),
        (torch.baddbmm, (_floats(4, 6), _floats(3, 4, 5), _floats(3, 5, 6)), (3, 4, 6, 5)),
    ],
    ids=["mm", "linear", "mv", "bmm", "baddbmm"],
)
def test_a_product_knows_its_shape(
    function: Callable[..., Tensor], tensors: tuple[Tensor, ...], shape: tuple[int, int, int, int]
) -> None:
    work = _of(function, *tensors)
    batch, m, n, k = shape

    assert (work.batch_W[0], work.m_W[0], work.n_W[0], work.k_W[0]) == shape
    assert work.flop() == 2 * batch * m * n * k


def test_a_chain_reads_what_was_there_once_and_writes_what_is_kept() -> None:
    """relu is needed again by the product, the rest is not."""

    def chain(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return torch.relu((x * 2 + y) * x) @ weight

    work = _of(chain, _floats(10, 100), _floats(10, 100), _floats(100, 1))

    assert work.bytes_W.tolist() == [8000, 12_000, 12_000, 8000, 4000 + 400 + 40]
    assert work.fused_bytes_W.tolist() == [4000, 4000, 0, 4000, 4000 + 400 + 40]
    assert (work.launches_W.tolist(), work.fused_launches_W.tolist()) == ([1] * 5, [1, 0, 0, 0, 1])


def test_a_log_softmax_is_computed_again_where_it_is_read() -> None:
    """Logits in bf16 are read twice, for the loss and for its gradient, which alone is written."""

    def losses_and_grad(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(logits.float(), dim=-1)
        return logs.gather(1, ids), logs.exp().to(torch.bfloat16)

    logits, ids = torch.zeros(10, 100, dtype=torch.bfloat16), torch.zeros(10, 1, dtype=torch.int64)
    work = _of(losses_and_grad, logits, ids)

    assert work.fused_bytes_W.tolist() == [2000, 0, 80 + 40 + 40, 2000, 2000]


def test_a_log_softmax_that_is_written_over_is_read_as_what_it_became() -> None:
    """Logits in fp32, straight from a product, are read for the loss and for the gradient."""

    def losses_and_head(hidden: Tensor, head: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(hidden @ head, dim=-1)
        losses = logs.gather(1, ids)
        return losses, logs.exp_() @ head.T

    hidden, head = _floats(10, 1), _floats(1, 100)
    work = _of(losses_and_head, hidden, head, torch.zeros(10, 1, dtype=torch.int64))

    product = 40 + 400 + 4000
    assert work.fused_bytes_W.tolist() == [product, 4000, 80 + 40 + 40, 8000, product]


def test_parts_of_a_tensor_are_read_each_and_never_more_than_the_whole() -> None:
    halves = _of(lambda x: x[:, :50] * x[:, 50:], _floats(10, 100))
    whole_then_half = _of(lambda x: (x * 2).sum() + x[:, 50:].sum(), _floats(10, 100))

    assert halves.fused_bytes_W.tolist() == [3 * 2000]
    assert whole_then_half.fused_bytes_W.sum() == 4000 + 4


def test_a_chain_ends_with_its_phase_and_writes_what_the_next_one_needs() -> None:
    """x + 1 for the gradient of silu, silu for that of y; the product is summed after."""
    x, y, recorder = (
        _floats(10, 100).requires_grad_(),
        _floats(10, 100).requires_grad_(),
        Recorder(),
    )
    recorder.seed(x, "weights", "x")
    recorder.seed(y, "weights", "y")
    for _ in range(2):
        recorder.begin("forward")
    with recorder:
        product = F.silu(x + 1) * y
        for _ in range(2):
            recorder.begin("backward")
        product.sum().backward()
    work = recorder.finish().work

    assert work is not None
    assert work.fused_bytes_W[:4].tolist() == [8000, 4000, 8000, 4000 + 4]
    assert work.fused_launches_W[:4].tolist() == [1, 0, 0, 1]
    assert work.phases_W[:4].tolist() == [0, 0, 0, PHASES.index("backward")]


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_element"), [("fused", 32), ("8bit", 4 + 4 + 4 * 2 + 4 + 4 * 2)]
)
def test_an_update_is_summed_over_parameters_and_touches_weights_gradients_and_states(
    step: MakeStep, optimizer: str, bytes_per_element: int
) -> None:
    """fp32 throughout, as the parameters that 8-bit states leave out are: weight, gradient and two
    states; a fused update scales gradients too.
    """
    spec = step(optimizer=optimizer, adapter=Lora(4), clips=False)
    trace = record_training(spec, config_of(spec), 1)
    assert trace.work is not None
    update = trace.work.part("optimizer")

    moved = {
        update.operators[row]: int(size)
        for row, size in zip(update.operators_W, update.bytes_W, strict=True)
    }
    name = "_fused_adamw_" if optimizer == "fused" else "adamw_8bit"
    assert moved[name] == pytest.approx(bytes_per_element * trace.trainable, rel=0.01)
    assert update.operators_W.tolist().count(update.operators.index(name)) == 1
    assert len(update) < 30


@pytest.mark.parametrize(
    ("tensors", "elements", "launches"),
    [(8, 10, 1), (110, 10, 1), (111, 10, 2), (2, 320 * 65_536, 2)],
)
def test_a_list_of_tensors_takes_few_kernels(tensors: int, elements: int, launches: int) -> None:
    work = _of(
        lambda: torch._foreach_mul_([torch.empty(elements, dtype=torch.bool)] * tensors, True),
        phase="optimizer",
    )

    assert work.launches_W.tolist() == [launches]


def test_four_bit_layers_unpack_their_weights_forward_and_backward(step: MakeStep) -> None:
    """The plain step's products. NF4 reads half a byte for every weight, writes two and the
    weight's fp32 scales, one for 64 weights, and reads these again.
    """
    changes: JsonDict = {"adapter": Lora(4, "q_proj"), "loss": "model"}
    plain, packed = _cuda(step, **changes), _cuda(step, quantize="nf4", **changes)

    rows_W = packed.operators_W == packed.operators.index("dequantise_nf4")
    times = 2 * LLAMA - WIDTH * (WIDTH + 2 * GROUP)  # the first block's input needs no gradient
    assert packed.flop() == plain.flop()
    assert {CLASSES[index] for index in packed.classes_W[rows_W]} == {"dequantise"}
    assert packed.bytes_W[rows_W].sum() == (0.5 + 2 + 2 * 4 / 64) * times


def test_16_bit_is_said_of_what_moves_not_of_its_indices() -> None:
    gathered = _of(F.embedding, ROWS, _floats(50, 20, dtype=torch.bfloat16))
    copied = _of(torch.Tensor.copy_, _floats(10), _floats(10, dtype=torch.bfloat16))
    counted = _of(lambda: torch.arange(10))

    assert [DTYPES[int(work.dtypes_W[0])] for work in (gathered, copied, counted)] == [
        "16-bit",
        "16-bit",
        "other",
    ]
