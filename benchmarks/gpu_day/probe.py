"""Asks a GPU what no CPU can answer, in some 25 s: ceilings, which attention kernel torch takes and
what a new shape costs it, which backward passes give the same bits twice, ways to the loss, packed
rows, adapters, what rows of many lengths leave reserved.

    python probe.py OUT.json        # without CUDA: the same code on small CPU tensors

Each answer is written as soon as it is known; a question that fails says why, and the next is asked.
Times are the least of several, in seconds.
"""

import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from torch.nn.attention import SDPBackend, sdpa_kernel

from brimful.model import packed_attention
from brimful.training.losses import (
    PieceLosses,
    linear_cross_entropy,
    piece_losses,
    piece_losses_to_compile,
)

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
COMPILER = "inductor" if ON_GPU else "aot_eager"
"""A CPU's kernels, which take ten CPU seconds, say nothing about a GPU's."""
HEADS, HEAD_SIZE = 16, 64
Heads = tuple[Tensor, Tensor, Tensor]
SEEN_TWICE = 5
"""How often a backward pass is made, whose gradients must be equal each time."""


def main() -> None:
    """Ask everything, and write what was found after each answer."""
    out, found = Path(sys.argv[1]), dict[str, Any]()
    for question in QUESTIONS:
        began = time.perf_counter()
        try:
            answer = question()
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
        found[question.__name__] = {**answer, "seconds": round(time.perf_counter() - began, 2)}
        print(question.__name__, found[question.__name__], flush=True)
        out.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")


def ceilings() -> Mapping[str, float]:
    """Products and copies at a size that fills the device, and the host's time for a launch."""
    size = 8192 if ON_GPU else 256
    left, right = (random_of(size, size) for _ in range(2))
    source = torch.empty(2 ** (30 if ON_GPU else 20), device=DEVICE, dtype=torch.uint8)
    copy, small = torch.empty_like(source), torch.ones(8, device=DEVICE)
    launches = 1_000 if ON_GPU else 100

    def launch() -> None:
        for _ in range(launches):
            small.add_(1)

    return {
        "bf16_flop_per_s": 2 * size**3 / least_time(lambda: left @ right, 10),
        "copied_bytes_per_s": 2 * source.numel() / least_time(lambda: copy.copy_(source), 10),
        "host_s_per_launch": least_time(launch) / launches,
    }


def attention_kernel() -> Mapping[str, Any]:
    """Which kernel torch takes for causal rows, of as many key heads as query heads and of fewer."""
    every, grouped = heads_of(512), heads_of(512, keys=2)
    chosen = {
        "all_heads": torch._fused_sdp_choice(*every, None, 0.0, True),
        "grouped_heads": torch._fused_sdp_choice(*grouped, None, 0.0, True, enable_gqa=True),
    }
    return {
        **{name: str(SDPBackend(number)) for name, number in chosen.items()},
        "order": str(torch._C._get_sdp_priority_order()),
    }


def new_shapes() -> Mapping[str, Any]:
    """Forward and backward pass at lengths never seen before (the last one twice), and of one
    length in rows of different lengths, by kernel.
    """
    lengths, rows = (301, 317, 333, 401, 401), (7001, 7002, 7002)
    if not ON_GPU:
        return {"without a GPU": passes_at(32, 32, nullcontext())}
    found = {}
    for name, backend in BACKENDS.items():
        found[name] = [passes_at(length, length, only(backend)) for length in lengths]
        found[f"{name}, other rows"] = [passes_at(401, row, only(backend)) for row in rows]
    return found


def same_bits() -> Mapping[str, bool]:
    """Which backward passes give the same gradients each time."""
    found = {}
    for length in (64, 128, 256, 1024) if ON_GPU else (16,):
        for name, backend in {"default": None, **BACKENDS}.items():
            torch.manual_seed(0)
            heads = heads_of(length, rows=8)
            grad = torch.randn_like(heads[0])

            def gradients(
                heads: Heads = heads,
                grad: Tensor = grad,
                backend: SDPBackend | None = backend,
            ) -> Sequence[Tensor]:
                with only(backend):
                    attended = F.scaled_dot_product_attention(*heads, is_causal=True)
                return torch.autograd.grad(attended, heads, grad)

            found[f"attention of {length}, {name}"] = is_repeatable(gradients)
    tokens, width = (16_384, 768) if ON_GPU else (512, 32)
    table = nn.Embedding(tokens, width, device=DEVICE)
    ids = torch.randint(0, 300, (16, 1024), device=DEVICE)
    grad = torch.randn(16, 1024, width, device=DEVICE)
    found["embedding"] = is_repeatable(lambda: torch.autograd.grad(table(ids), table.weight, grad))
    return found


def loss() -> Mapping[str, float]:
    """Seconds of the cross-entropy with its head, forward and backward, by way and chunk."""
    tokens, width, vocabulary = (8192, 768, 50_304) if ON_GPU else (64, 32, 100)
    hidden_BTD = random_of(1, tokens, width).requires_grad_()
    head_VD = torch.randn(vocabulary, width, device=DEVICE, requires_grad=True)
    targets_BT = torch.randint(0, vocabulary, (1, tokens), device=DEVICE)

    def in_chunks(chunk: int, piece: PieceLosses) -> None:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            linear_cross_entropy(
                hidden_BTD, head_VD, targets_BT, chunk_tokens=chunk, piece=piece
            ).backward()
        hidden_BTD.grad = head_VD.grad = None

    def whole() -> None:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            logits_NV = F.linear(hidden_BTD[0], head_VD)
        F.cross_entropy(logits_NV.float(), targets_BT[0], reduction="sum").backward()
        hidden_BTD.grad = head_VD.grad = None

    found = {"all logits at once": least_time(whole)}
    compiled = torch.compile(piece_losses_to_compile, backend=COMPILER)
    pieces = {"": piece_losses, ", compiled": compiled}
    for chunk, (how, piece) in itertools.product((tokens // 8, tokens), pieces.items()):
        found[f"chunks of {chunk}{how}"] = least_time(functools.partial(in_chunks, chunk, piece))
    return found


def packed_rows() -> Mapping[str, float]:
    """Seconds of attention within 64 examples of one row, forward and backward, grouped heads."""
    examples, length = (64, 128) if ON_GPU else (4, 32)
    heads = heads_of(examples * length, queries=14, keys=2)
    lengths_E, module = torch.full((examples,), length), nn.Module().train()

    def attend() -> None:
        attended, _ = packed_attention._attend(module, *heads, None, packed_lengths=lengths_E)
        attended.sum().backward()

    found = {"as a run does": least_time(attend)}
    has_kernel = packed_attention._has_flash_kernel
    packed_attention._has_flash_kernel = lambda *_: False
    try:
        found["one example at a time"] = least_time(attend)
    finally:
        packed_attention._has_flash_kernel = has_kernel
    return found


def adapters() -> Mapping[str, float]:
    """Seconds of a bf16 layer without and with peft's adapters, which it computes in fp32."""
    tokens, width = (8192, 4096) if ON_GPU else (64, 32)
    hidden = random_of(1, tokens, width).requires_grad_()
    layer = nn.Linear(width, width, bias=False, device=DEVICE, dtype=torch.bfloat16)
    plain = least_time(lambda: layer(hidden).sum().backward())
    adapted = inject_adapter_in_model(LoraConfig(r=16, target_modules=["0"]), nn.Sequential(layer))
    return {
        "plain": plain,
        "adapted": least_time(lambda: adapted(hidden).sum().backward()),
    }


def reserved() -> Mapping[str, Any]:
    """Bytes reserved and allocated at most by passes of ever other lengths, with the allocator as it
    is and with segments that grow.
    """
    if not ON_GPU:
        return {"without a GPU": "not asked"}
    found = {}
    for grows in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings(f"expandable_segments:{grows}")
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for length in (7001, 6203, 8192, 5005, 7900, 8001, 4096, 8192):
            kept = [random_of(length, 4096).requires_grad_()]
            for _ in range(16):
                kept += [kept[-1] * 1.01, random_of(length, 14336)]
            kept[-2].sum().backward()
        wait()
        found["segments that grow" if grows else "as it is"] = {
            "reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.max_memory_allocated(),
            "seconds": time.perf_counter() - began,
        }
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    return found


QUESTIONS = (
    *(ceilings, attention_kernel, new_shapes, same_bits, loss, packed_rows, adapters, reserved),
)


def least_time(run: Callable[[], object], times: int = 5) -> float:
    """Return the least of several times of a call, after one that does not count."""
    run()
    took = []
    for _ in range(times):
        wait()
        began = time.perf_counter()
        run()
        wait()
        took.append(time.perf_counter() - began)
    return min(took)


def passes_at(length: int, row: int, kernel: AbstractContextManager[None]) -> tuple[float, float]:
    """Return the seconds of one forward and one backward pass over the first positions of a row."""
    queries, keys, values = (each.narrow(2, 0, length) for each in heads_of(row))
    wait()
    began = time.perf_counter()
    with kernel:
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    wait()
    forward = time.perf_counter() - began
    attended.sum().backward()
    wait()
    return round(forward, 5), round(time.perf_counter() - began - forward, 5)


def heads_of(length: int, *, rows: int = 1, queries: int = HEADS, keys: int = HEADS) -> Heads:
    """Return queries, keys and values as views of what a layer's products give: (B, H, T, D)."""

    def made(count: int) -> Tensor:
        return random_of(rows, length, count, HEAD_SIZE).transpose(1, 2).requires_grad_()

    return made(queries), made(keys), made(keys)


def random_of(*shape: int) -> Tensor:
    """Return normal numbers in bf16."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def is_repeatable(gradients: Callable[[], Sequence[Tensor]]) -> bool:
    """Return whether the same gradients come each time."""
    first = gradients()
    return all(
        torch.equal(one, other)
        for _ in range(SEEN_TWICE - 1)
        for one, other in zip(first, gradients(), strict=True)
    )


@contextmanager
def only(backend: SDPBackend | None) -> Iterator[None]:
    """Let torch take one kernel alone; any for None, and without a GPU."""
    with sdpa_kernel([backend]) if backend is not None and ON_GPU else nullcontext():
        yield


def wait() -> None:
    """Wait until the device has done all that it was given."""
    if ON_GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
