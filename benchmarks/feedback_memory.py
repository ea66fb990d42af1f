"""What feedback alignment costs in memory and time beside backpropagation: forward and backward
pass of one micro-batch of architecture okadfa.

    python benchmarks/feedback_memory.py [--rounds 9] [--layers 8] [--width 256] [--length 256]
    [--sequences 4]

Rules: same weights, tokens and loss; each with and without recomputation of blocks. Memory is the
highest point of the pass above the weights, in bytes as asked for: on a CPU by torch's profiler, on
CUDA by its allocator. Time is that of one thread (CPU time) or of the device, models in turns
forwards and backwards, median and paired ratios with a bootstrap interval over rounds; the first
pass of each is not counted. bf16 autocast on CUDA, fp32 on a CPU.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging

from brimful.data.batches import MicroBatch
from brimful.model.description import config_values
from brimful.model.registered import register
from brimful.planning.step import StepSpec, canonical
from brimful.recipe import ModelRecipe
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.training import loss_of, prepare
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Method, Network, hidden_states_of
from brimful.training.precision import Precision
from measured_steps import measure_steps
from record import ratio_interval, summary, timed, write_record

VOCABULARY, HEADS = 4096, 4


def _fed_back(points: str) -> dict[str, Any]:
    return {"method": "feedback", "options_json": json.dumps({"feedback": points})}


BACKPROPAGATION = "backpropagation"
WAYS: Mapping[str, Mapping[str, Any]] = {
    BACKPROPAGATION: {},
    "backpropagation, recomputed": {"recompute": True},
    "feedback": _fed_back("block"),
    "feedback, recomputed": {**_fed_back("block"), "recompute": True},
    "feedback behind sublayers": _fed_back("sublayer"),
    "final norm and head alone": _fed_back("none"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (
        ("rounds", 9),
        ("layers", 8),
        ("width", 256),
        ("length", 256),
        ("sequences", 4),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    register()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = {
        attention: _measure(attention, options, device) for attention in ("kernel", "softmax")
    }
    sizes = {
        "layers": options.layers,
        "width": options.width,
        "length": options.length,
        "sequences": options.sequences,
        "vocabulary": VOCABULARY,
    }
    print(
        write_record(
            "feedback_memory",
            {
                **sizes,
                "precision": _precision(device).name,
                "rounds": options.rounds,
                "attention": results,
            },
        )
    )


def _measure(attention: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    specs = {way: _spec(attention, options, changes) for way, changes in WAYS.items()}
    models = {way: real_model(spec, config_of(spec)) for way, spec in specs.items()}
    gradient_bytes = sum(
        parameter.numel() * 4 for parameter in models[BACKPROPAGATION].parameters()
    )
    peaks = {
        way: _peak_bytes(models[way], spec, options.sequences, device)
        for way, spec in specs.items()
    }
    passes = {
        way: _pass(models[way], spec, options.sequences, device) for way, spec in specs.items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds + 1):
        for way in WAYS if number % 2 else reversed(list(WAYS)):
            taken_s = timed(passes[way], device)
            if number:
                seconds[way].append(taken_s)
    rows = {
        way: {
            "peak_above_weights_bytes": peaks[way],
            "of_backpropagation": round(peaks[way] / peaks[BACKPROPAGATION], 4),
            "pass_s": summary(seconds[way]),
            "time_over_backpropagation": ratio_interval(seconds[way], seconds[BACKPROPAGATION]),
        }
        for way in WAYS
    }
    for way, row in rows.items():
        _print(f"{attention}, {way}", row)
    return {"gradient_bytes": gradient_bytes, "ways": rows}


def _spec(attention: str, options: argparse.Namespace, changes: Mapping[str, Any]) -> StepSpec:
    described = ModelRecipe(
        architecture="okadfa",
        attention=attention,  # type: ignore[arg-type]
        layers=options.layers,
        heads=HEADS,
        width=options.width,
    )
    config = AutoConfig.for_model(
        **config_values(described, vocabulary=VOCABULARY, context=options.length),
        bos_token_id=None,
        eos_token_id=None,
    )
    return StepSpec(
        config_json=canonical(config.to_dict()),
        sequence_length=options.length,
        loss_chunk=256,
        cuda=False,
        accumulates=False,
        **changes,
    )


def _precision(device: torch.device) -> Precision:
    return Precision("bf16" if device.type == "cuda" else "fp32")


def _pass(
    model: nn.Module, spec: StepSpec, sequences: int, device: torch.device
) -> Callable[[], None]:
    """One forward and backward pass from no gradients."""
    model.to(device)
    prepare(spec, model)
    network = Network(model, hidden_states_of(model), spec.loss_chunk)
    method = Method(loss_of(spec))
    ids_BT = torch.randint(
        0,
        VOCABULARY,
        (sequences, spec.sequence_length + 1),
        generator=torch.Generator().manual_seed(0),
    ).to(device)
    micro, scale = MicroBatch(ids_BT[:, :-1], ids_BT[:, 1:]), torch.ones((), device=device)

    def run() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        accumulate_gradients(network, method, _precision(device), device, [micro], scale)

    return run


def _peak_bytes(model: nn.Module, spec: StepSpec, sequences: int, device: torch.device) -> int:
    """Of the first pass, above the weights."""
    if device.type == "cpu":
        measured = measure_steps(model, spec, sequences)
        peaks = measured.peaks()
        return max(peaks["forward"], peaks["backward"]) - measured.start_bytes
    run = _pass(model, spec, sequences, device)
    run()  # libraries' work spaces, the feedback matrix
    for parameter in model.parameters():
        parameter.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def _print(name: str, row: Mapping[str, Any]) -> None:
    ratio = row["time_over_backpropagation"]
    print(
        f"{name:40s} {row['peak_above_weights_bytes'] / 2**20:8.1f} MiB,"
        f" {row['of_backpropagation']:.3f} of backpropagation's "
        f" {1000 * row['pass_s']['median']:8.1f} ms, {ratio['median']:.3f} of backpropagation's"
        f" [{ratio['low']:.3f}, {ratio['high']:.3f}]",
        flush=True,
    )


if __name__ == "__main__":
    main()
