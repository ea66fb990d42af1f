"""How other trainers turn hidden states into a loss.

Shapes: B sequences, T positions, D hidden size, V vocabulary, N tokens of all sequences.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.data.batches import MicroBatch
from brimful.integrations.other_tools.step import ForeignStep, LossChain
from brimful.model.blocks import CACHE_NAME, body_of
from brimful.rehearsal.recorder import note_kernel
from brimful.training.method import LossSum, Network


def chained_loss(spec: ForeignStep, chain: LossChain) -> LossSum:
    """Lifetimes are those of local variables in a transformers model's forward and its loss
    function: they end when it returns.
    """
    held: list[Any] = []  # the outputs, in loops that keep them
    frozen: list[Tensor] = []  # weights of the reference, where it is a model of its own

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        if chain.second_model and not frozen:
            frozen[:] = [weight.detach().clone() for weight in network.model.parameters()]
        loss, logits_BTV = one_pass(network, micro)
        for _ in range(chain.passes):
            with torch.no_grad(), warnings.catch_warnings():
                # A checkpointed block misses gradients, which a reference has none of.
                warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
                one_pass(network, micro)
        del logits_BTV
        return loss

    def one_pass(network: Network, micro: MicroBatch) -> tuple[Tensor, Tensor | None]:
        with _kept_outputs(network, "c_attn" if spec.quirks.keeps_fused_qkv else None) as kept:
            outputs = body_of(network.model)(
                **micro.model_inputs(), use_cache=spec.quirks.use_cache
            )
        hidden_BTD = outputs[0]
        if chain.scored:
            hidden_BTD = hidden_BTD[:, -chain.scored :]
        if chain.cross_entropy in _WITHOUT_LOGITS:
            return _WITHOUT_LOGITS[chain.cross_entropy](hidden_BTD, network, chain), None
        logits_BTV = _logits(network, hidden_BTD)
        if chain.upcast == "instead":
            logits_BTV = logits_BTV.float()
        loss = _cross_entropy(logits_BTV, chain)
        del hidden_BTD
        if spec.quirks.fp32_outputs:
            logits_BTV = logits_BTV.float()
        kept.clear()
        if spec.quirks.keeps_outputs:
            held[:] = [logits_BTV, getattr(outputs, CACHE_NAME) if spec.quirks.use_cache else None]
        return loss, logits_BTV if chain.passes else None

    return loss_sum


def plain_cross_entropy(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
    """The loss of logits as they are, in place of the loss function of a transformers model."""
    return F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))


def compiled_loss(spec: ForeignStep) -> LossSum:
    """The loss inside a transformers model that is compiled with it. What its chain of casts and
    copies makes eagerly is for the compiler to decide.
    """
    held: list[Any] = []

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        outputs = network.model(
            input_ids=micro.inputs_BT, labels=micro.targets_BT, use_cache=spec.quirks.use_cache
        )
        if spec.quirks.keeps_outputs:
            held[:] = [outputs.logits]
        loss: Tensor = outputs.loss
        return loss

    return loss_sum


@contextmanager
def _kept_outputs(network: Network, suffix: str | None) -> Iterator[list[Tensor]]:
    """Outputs of the modules of this name, for as long as the list lives."""
    kept: list[Tensor] = []
    modules = [
        module
        for name, module in network.model.named_modules()
        if suffix is not None and name.endswith(suffix)
    ]
    handles = [
        module.register_forward_hook(lambda _, __, output: kept.append(output))
        for module in modules
    ]
    yield kept
    for handle in handles:
        handle.remove()


def _logits(network: Network, hidden_BTD: Tensor) -> Tensor:
    logits_BTV: Tensor = network.model.get_output_embeddings()(hidden_BTD)
    scaling = getattr(network.model.config, "logits_scaling", None)
    if scaling is not None:
        logits_BTV = logits_BTV / scaling
    cap = network.logit_softcap
    return logits_BTV if cap is None else torch.tanh(logits_BTV / cap) * cap


def _cross_entropy(logits_BTV: Tensor, chain: LossChain) -> Tensor:
    if chain.upcast == "beside":
        logits_BTV = logits_BTV.float()
    labels = torch.zeros(logits_BTV.shape[:-1], dtype=torch.int64)
    if chain.shifted_copy:
        shifted, labels = logits_BTV[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    else:
        shifted, labels = logits_BTV, F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    logits_NV = shifted.view(-1, shifted.shape[-1])
    if chain.cross_entropy == "in_place":
        loss: Tensor = _InPlaceCrossEntropy.apply(logits_NV)  # type: ignore[no-untyped-call]
        return loss
    return F.cross_entropy(logits_NV, labels.view(-1))


class _InPlaceCrossEntropy(torch.autograd.Function):
    """Keeps the logits and writes their gradient over them."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor) -> Tensor:
        losses = torch.empty(logits_NV.shape[0], dtype=torch.float32)
        lse = torch.empty(logits_NV.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits_NV, lse)
        note_kernel("in_place_cross_entropy", "reduction", (logits_NV,), (losses, lse))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        logits_NV: Tensor = ctx.saved_tensors[0]
        note_kernel("in_place_cross_entropy_backward", "reduction", (logits_NV,), (logits_NV,))
        return logits_NV


def _fused_linear(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    if chain.shifted_copy:
        hidden_BTD = hidden_BTD[..., :-1, :].contiguous()
    loss: Tensor = _FusedLinearCrossEntropy.apply(hidden_BTD.flatten(0, 1), network.head_weight_VD)  # type: ignore[no-untyped-call]
    return loss


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """Liger's (ops/fused_linear_cross_entropy.py, 0.3): chunks of logits in fp32, both gradients
    made in the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        dtype = (
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden_ND.dtype
        )
        tokens, width = hidden_ND.shape
        chunks = -(-weight_VD.shape[0] // width)
        chunk_tokens = 1 << (-(-tokens // chunks) - 1).bit_length()
        grad_hidden_ND = torch.zeros_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        losses = torch.zeros(tokens, dtype=torch.float32)
        for start in range(0, tokens, chunk_tokens):
            chunk_ND = hidden_ND[start : start + chunk_tokens]
            logits = chunk_ND @ weight_VD.t()
            logits = logits.float()
            logits = logits.to(dtype)
            scaled = logits * 1.0
            grad_hidden_ND[start : start + chunk_tokens] = scaled @ weight_VD
            if grad_weight_VD is not None:
                torch.addmm(grad_weight_VD, logits.t(), chunk_ND, out=grad_weight_VD)
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        return grad_hidden_ND, grad_weight_VD


def _cut(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    loss: Tensor = _CutCrossEntropy.apply(hidden_BTD.flatten(0, 1), network.head_weight_VD)  # type: ignore[no-untyped-call]
    return loss


class _CutCrossEntropy(torch.autograd.Function):
    """apple/ml-cross-entropy: logits live in registers only, and are made again in the backward
    pass. Keeps its operands in 16 bits and one fp32 number per row.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else hidden_ND.dtype
        ctx.dtypes = hidden_ND.dtype, weight_VD.dtype
        hidden_ND, weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
        losses = torch.empty(hidden_ND.shape[0], dtype=torch.float32)
        lse = torch.empty_like(losses)
        _note_products("cut_cross_entropy", hidden_ND, weight_VD, 1, (losses, lse))
        ctx.save_for_backward(hidden_ND, weight_VD, lse)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden_ND, weight_VD, _ = ctx.saved_tensors
        grad_hidden_ND = torch.zeros_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        products = 3 if ctx.needs_input_grad[1] else 2
        _note_products(
            "cut_cross_entropy_backward", hidden_ND, weight_VD, products, (grad_hidden_ND,)
        )
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.to(ctx.dtypes[1])
        return grad_hidden_ND.to(ctx.dtypes[0]), grad_weight_VD


def _note_products(
    name: str, hidden_ND: Tensor, weight_VD: Tensor, count: int, writes: tuple[Tensor, ...]
) -> None:
    """Products of all rows with the head, in one kernel."""
    rows, width = hidden_ND.shape
    vocabulary = weight_VD.shape[0]
    note_kernel(
        name,
        "matrix",
        (hidden_ND, weight_VD),
        writes,
        flop=2 * count * rows * width * vocabulary,
        shape=(count, rows, vocabulary, width),
    )


CHUNKS = 8
"""Pieces of torchtune's LinearCrossEntropyLoss (num_output_chunks)."""


def _chunked(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    """torchtune's: rows with a target are copied, all of them here; logits of a piece go as soon as
    their log-softmax in fp32 is there.
    """
    hidden_ND = hidden_BTD.flatten(0, 1)
    hidden_ND = hidden_ND.index_select(0, torch.zeros(hidden_ND.shape[0], dtype=torch.int64))
    return _in_pieces(_logits(network, piece_ND) for piece_ND in hidden_ND.tensor_split(CHUNKS))


def _chunked_outputs(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    """torchtune's older one: the model returns the logits of all pieces, cut along the rows'
    positions, which stand until the loss is there.
    """
    return _in_pieces([_logits(network, piece) for piece in hidden_BTD.tensor_split(CHUNKS, 1)])


def _in_pieces(pieces: Iterable[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float32)
    for logits in pieces:
        logits_NV = logits.reshape(-1, logits.shape[-1])
        targets_N = torch.zeros(logits_NV.shape[0], dtype=torch.int64)
        total = total + F.cross_entropy(logits_NV.float(), targets_N, reduction="sum")
        del logits, logits_NV
    return total


def _values(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    """LLaMA-Factory's reward models (TRL's AutoModelForCausalLMWithValueHead): logits are made,
    copied in fp32 and not used; a head with one output reads the hidden states in fp32.
    """
    logits_BTV = _logits(network, hidden_BTD)
    unused_BTV = logits_BTV.float()
    loss = (hidden_BTD.float() @ torch.zeros(hidden_BTD.shape[-1])).sum()
    del logits_BTV, unused_BTV  # which stood until here
    return loss


TILE_ROWS, TILE_WORDS = 4096, 32768
"""Rows and words of a tile of TRL's fused head."""


def _tiled(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    """TRL's fused head on a GPU: rows with a target are copied, all of them here."""
    shifted_BTD = hidden_BTD[:, :-1]
    shape = shifted_BTD.shape[:-1]
    places = torch.zeros(shape.numel(), dtype=torch.int64)
    weight_VD = network.head_weight_VD
    loss: Tensor = _TiledLogShares.apply(shifted_BTD[places, places], weight_VD)  # type: ignore[no-untyped-call]
    return loss


class _TiledLogShares(torch.autograd.Function):
    """TRL's ChunkedLogProbFunction (kernels/chunked_logprob.py, 1.16): logits of a tile lie in a
    buffer that is used again, kernels fold them into numbers per row, and the backward pass makes
    them once more and sums both gradients in fp32. Tiles of the first rows are traced; the products
    of the others are only noted, as their buffer is the same.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        ctx.dtype = torch.get_autocast_dtype("cpu") if autocast else hidden_ND.dtype
        rows = hidden_ND.shape[0]
        statistics = [torch.zeros(rows, dtype=torch.float32) for _ in range(7)]
        tile = torch.empty((min(rows, TILE_ROWS), TILE_WORDS), dtype=ctx.dtype)
        first_ND = hidden_ND[:TILE_ROWS].to(ctx.dtype)
        for start in range(0, weight_VD.shape[0], TILE_WORDS):
            part_VD = weight_VD[start : start + TILE_WORDS]
            logits = tile[:, : part_VD.shape[0]]
            torch.mm(first_ND, part_VD.to(ctx.dtype).t(), out=logits)
            note_kernel("fold_tile", "reduction", (logits,), ())
        _note_further_rows("tiles", hidden_ND, weight_VD, 1)
        log_sums = statistics[0] + torch.log(statistics[1])
        entropies = log_sums - statistics[2] / statistics[1]
        ctx.save_for_backward(hidden_ND, weight_VD, log_sums, entropies)
        return (statistics[3] - log_sums).sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden_ND, weight_VD, _, _ = ctx.saved_tensors
        trains_head, rows = ctx.needs_input_grad[1], hidden_ND.shape[0]
        grad_hidden_ND = torch.zeros(hidden_ND.shape, dtype=torch.float32)
        grad_weight_VD = torch.zeros(weight_VD.shape, dtype=torch.float32) if trains_head else None
        tile = torch.empty((min(rows, TILE_ROWS), TILE_WORDS), dtype=ctx.dtype)
        first_ND = hidden_ND[:TILE_ROWS].to(ctx.dtype)
        for start in range(0, weight_VD.shape[0], TILE_WORDS):
            part_VD = weight_VD[start : start + TILE_WORDS].to(ctx.dtype)
            logits = tile[:, : part_VD.shape[0]]
            torch.mm(first_ND, part_VD.t(), out=logits)
            note_kernel("tile_gradient", "reduction", (logits,), (logits,))
            _note_products("tile_into_gradients", first_ND, part_VD, 1 + trains_head, ())
        _note_further_rows("tiles_backward", hidden_ND, weight_VD, 2 + trains_head)
        if grad_weight_VD is None:
            return grad_hidden_ND.to(hidden_ND.dtype), None
        return grad_hidden_ND.to(hidden_ND.dtype), grad_weight_VD.to(weight_VD.dtype)


def _note_further_rows(name: str, hidden_ND: Tensor, weight_VD: Tensor, products: int) -> None:
    """Note the work of the rows behind the first tile."""
    further_ND = hidden_ND[TILE_ROWS:]
    if further_ND.shape[0]:
        _note_products(f"further_{name}", further_ND, weight_VD, products, ())
        logit_bytes = 2 * 2 * further_ND.shape[0] * weight_VD.shape[0]
        note_kernel(f"fold_further_{name}", "reduction", (further_ND,), (), extra_bytes=logit_bytes)


_WITHOUT_LOGITS: Mapping[str, Callable[[Tensor, Network, LossChain], Tensor]] = {
    "fused_linear": _fused_linear,
    "cut": _cut,
    "chunked": _chunked,
    "chunked_outputs": _chunked_outputs,
    "tiled": _tiled,
    "values": _values,
}
"""Losses whose backward pass never holds a gradient of the whole logits, by the name of the
cross-entropy.
"""
