"""Kernel attention beside softmax attention: time and kept memory of one layer by length, where
they cross, and how well one estimates the other.

    python benchmarks/okadfa_attention.py [--rounds 5] [--lengths 512 1024 ...] [--device cpu|cuda]
    [--bf16] [--compile]

Time: forward and backward pass of one layer's attention (four projections included, which are the
same) of an okadfa model, one text, in training's types: fp32 on a CPU with one thread (with --bf16
bf16 autocast, in which kernel attention stays in fp32), bf16 autocast on a GPU. Softmax attention
runs with the fastest implementation that brimful has for the length.
Kinds take turns, forwards and backwards; the first pass of each is not counted. CPU time on
a CPU, wall time around a synchronised GPU; median of paired ratios with a bootstrap interval. The
crossing is interpolated between lengths, both logarithmic. Lengths whose tensors would take more
than half of the free memory are left out, and named.

Fidelity: cosine between the two attentions' outputs for random queries and keys of length 1, over
seeds, by features and by temperature.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.hardware import host
from brimful.model.attention import LONGEST, NAME
from brimful.model.okadfa.configuration import OkadfaConfig
from brimful.model.okadfa.features import draw_projection, key_features, query_features
from brimful.model.okadfa.linear_attention import causal_attention
from brimful.model.okadfa.modeling import OkadfaAttention
from brimful.model.registered import register
from record import ratio_interval, summary, timed, write_record

LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
KINDS = ("kernel", "softmax")
FEATURE_TENSORS = 16
"""Tensors as large as the features of queries that a forward and a backward pass may hold at the
same time (assumption, from above).
"""
FIDELITY_LENGTH, HEAD_SIZE = 512, 64
FEATURES = (32, 64, 128, 256, 512, 1024)
TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast on a CPU, too")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    register()
    device = torch.device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    width = arguments.heads * HEAD_SIZE
    fitting = [length for length in arguments.lengths if _fits(length, arguments.heads, device)]
    has_bf16 = arguments.bf16 or device.type == "cuda"
    how = {"has_bf16": has_bf16, "compiles": arguments.compile}
    timed = measure(fitting, arguments.heads, arguments.rounds, device, **how)
    values = {
        "layer": {
            "width": width,
            "heads": arguments.heads,
            "head_size": HEAD_SIZE,
            "features": 4 * HEAD_SIZE,
            "rows": 1,
        },
        "precision": "bf16 autocast" if has_bf16 else "fp32",
        "measured_on": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "clock": "CPU time" if device.type == "cpu" else "wall time, synchronised",
        "compiled": arguments.compile,
        "left_out_lengths": [length for length in arguments.lengths if length not in fitting],
        "lengths": timed,
        "crossing_length": crossing(
            [(each["length"], each["kernel_over_softmax"]["median"]) for each in timed]
        ),
        "fidelity_by_features": [
            {"features": count} | fidelity(count, 1.0, arguments.seeds) for count in FEATURES
        ],
        "fidelity_by_temperature": [
            {"temperature": each} | fidelity(4 * HEAD_SIZE, each, arguments.seeds)
            for each in TEMPERATURES
        ],
    }
    for each in [*values["fidelity_by_features"], *values["fidelity_by_temperature"]]:
        print(each, flush=True)
    print("crossing:", values["crossing_length"])
    kind = "_bf16" if arguments.bf16 and device.type == "cpu" else ""
    print(write_record(f"okadfa_attention_{device.type}{kind}", values))


def _fits(length: int, heads: int, device: torch.device) -> bool:
    free_bytes = (
        host.memory_free_bytes(host.control_group_limits())
        if device.type == "cpu"
        else torch.cuda.mem_get_info(device)[0]
    )
    return length * heads * 4 * HEAD_SIZE * 4 * FEATURE_TENSORS < free_bytes / 2


def measure(
    lengths: Sequence[int], heads: int, rounds: int, device: torch.device, **how: bool
) -> list[dict[str, Any]]:
    """Seconds and kept bytes of both kinds by length."""
    results = []
    for length in lengths:
        passes = {kind: _pass(kind, length, heads, device, **how) for kind in KINDS}
        kept_bytes = {
            kind: _kept_bytes(one_pass) for kind, one_pass in passes.items()
        }  # warms up as well
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(rounds):
            for kind in KINDS if number % 2 else reversed(KINDS):
                seconds[kind].append(timed(passes[kind], device))
        ratio = ratio_interval(seconds["kernel"], seconds["softmax"])
        spreads = {f"{kind}_s": summary(values) for kind, values in seconds.items()}
        results.append(
            {
                "length": length,
                "softmax": _softmax(length, device),
                **spreads,
                "kernel_over_softmax": ratio,
                "kept_bytes": kept_bytes,
            }
        )
        shown = ", ".join(
            f"{kind} {1e3 * spreads[f'{kind}_s']['median']:.1f} ms, keeps"
            f" {kept_bytes[kind] / 1e6:.0f} MB"
            for kind in KINDS
        )
        print(
            f"{length} positions: {shown}; ratio {ratio['median']:.2f} [{ratio['low']:.2f},"
            f" {ratio['high']:.2f}]",
            flush=True,
        )
    return results


def _softmax(length: int, device: torch.device) -> str:
    return NAME if device.type == "cpu" and length <= LONGEST else "sdpa"


def _pass(
    kind: str, length: int, heads: int, device: torch.device, *, has_bf16: bool, compiles: bool
) -> Callable[[], None]:
    """A forward and a backward pass of one layer's attention; the forward pass alone keeps what
    `_kept_bytes` counts.
    """
    config = OkadfaConfig(
        hidden_size=heads * HEAD_SIZE,
        num_attention_heads=heads,
        num_hidden_layers=1,
        attention=kind,
    )
    config._attn_implementation = _softmax(length, device)
    if kind == "kernel":
        config._attn_implementation = NAME if device.type == "cpu" else "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = OkadfaAttention(config, 0)
        hidden_BTD = torch.randn(1, length, config.hidden_size).to(device).requires_grad_()
    torch.nn.init.zeros_(layer.log_temperature_H)
    if kind == "kernel":
        layer.redraw(0)
    layer.to(device)
    if compiles:
        layer.compile()
    precision: AbstractContextManager[Any] = (
        torch.autocast(device.type, torch.bfloat16) if has_bf16 else nullcontext()
    )

    def run() -> None:
        with precision:
            attended_BTD = layer(hidden_BTD)
        attended_BTD.sum().backward()

    return run


def _kept_bytes(run: Callable[[], None]) -> int:
    """What the forward pass keeps for the backward pass, each storage once; weights and input
    included.
    """
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(kept.values())


def crossing(ratios: Iterable[tuple[int, float]]) -> float | None:
    """Length from which the ratio stays at or below 1; None where the longest is above."""
    found, before = None, None
    for length, ratio in sorted(ratios):
        if ratio > 1:
            found = None
        elif found is None:
            share = (
                1.0
                if before is None
                else math.log(before[1]) / (math.log(before[1]) - math.log(ratio))
            )
            found = length if before is None else before[0] * (length / before[0]) ** share
        before = length, ratio
    return found


def fidelity(features: int, temperature: float, seeds: int) -> dict[str, dict[str, float]]:
    """Cosine between the outputs, and ratio of their norms."""
    cosines, norms = [], []
    for seed in range(seeds):
        drawn = torch.randn(
            3, 1, 4, FIDELITY_LENGTH, HEAD_SIZE, generator=torch.Generator().manual_seed(seed)
        )
        queries, keys = (F.normalize(each, dim=-1) * math.sqrt(temperature) for each in drawn[:2])
        projection = draw_projection(4, features, HEAD_SIZE, seed=seed, layer=0)
        found, _ = causal_attention(
            query_features(queries, projection), key_features(keys, projection), drawn[2]
        )
        expected = F.scaled_dot_product_attention(
            queries, keys, drawn[2], is_causal=True, scale=1.0
        )
        cosines.append(F.cosine_similarity(found.flatten(), expected.flatten(), dim=0).item())
        norms.append((found.norm() / expected.norm()).item())
    return {"cosine": summary(cosines), "norm_ratio": summary(norms)}


if __name__ == "__main__":
    main()
