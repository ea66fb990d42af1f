"""What is tried on a machine, in order of worth: first whether runs survive, then memory and time
of trainings, speed beside other programs, then the device itself.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from brimful.base.errors import RequestError
from brimful.prove.bases import random_base
from brimful.prove.device_trials import (
    calibrates,
    keeps_the_edge,
    models_the_allocator,
    passes_its_tests,
    reads_like_nvidia_smi,
)
from brimful.prove.material import (
    DOCUMENTS_FILE,
    EXAMPLES_FILE,
    FUNCTIONS_FILE,
    LABELLED_FILE,
)
from brimful.prove.record import Outcome
from brimful.prove.speed import (
    samples_beside_others,
    trains_beside_others,
    tunes_beside_trl,
)
from brimful.prove.survival import survives
from brimful.prove.sweep import Changes, beside_a_sweep
from brimful.prove.training import trains_as_planned
from brimful.prove.workplace import RUNS, Workplace
from brimful.runs.files import MODEL_FOLDER

Recipe = Mapping[str, Any]
SURVIVAL, TRAINING = "Survives being killed", "Runs as planned"
SPEED, DEVICE = "Speed beside other programs", "The device itself"
PARTS = (SURVIVAL, TRAINING, SPEED, DEVICE)
CALIBRATED = "-calibrated"
"""Ends the name of a training that is repeated after calibrating."""


@dataclass(frozen=True)
class Trial:
    """One thing that is tried.

    Attributes:
        title: What it is, for a person.
    """

    name: str
    part: str
    title: str
    run: Callable[[Workplace], Outcome]


def trials_for(kind: str) -> list[Trial]:
    """Return the trials for a kind of device: "cuda", "mps" or "cpu"."""
    return list(_on_cuda() if kind == "cuda" else _on_a_small_machine())


def chosen(trials: Sequence[Trial], names: Sequence[str]) -> list[Trial]:
    """Return the trials of these names in their order; all where none is named.

    Raises:
        RequestError: there is none of a name.
    """
    by_name = {each.name: each for each in trials}
    for name in names:
        if name not in by_name:
            raise RequestError(f"no trial {name!r} here. There are: {', '.join(by_name)}.")
    return [by_name[name] for name in names] or list(trials)


def _on_cuda() -> Iterator[Trial]:
    yield _survival("documents-1024", "A GPT from scratch, 1,024 positions", LONG_DOCUMENTS)
    yield from _survivals()
    yield from _trainings(CUDA_TRAININGS)
    compiled = {"not compiled": {"compile": False}, "recomputed": {"recompute": True}}
    yield _sweep("The GPT of 124M's shape", _gpt(12, 12, 768, 128), (0.25, 0.5, 2), compiled)
    yield _speed("The GPT of 124M's shape", _gpt(12, 12, 768, 128, steps=40))
    tuned = _tuned(64, steps=40, adapter=_LORA)
    yield _tuning_speed("LoRA of 0.5B beside TRL", tuned, _QWEN_HALF)
    yield _sampling_speed(prompts=64, samples=16, tokens=256)
    yield Trial("edge", DEVICE, "The largest micro-batch that fits runs, the next does not", _edge)
    yield Trial("allocator", DEVICE, "The model of torch's allocator reserves as it does", _model)
    yield Trial("monitor", DEVICE, "The monitor reads what nvidia-smi reads", _monitor)
    yield Trial("calibrate", DEVICE, "brimful calibrate measures the device", calibrates)
    yield from _trainings(CUDA_TRAININGS[:11], suffix=CALIBRATED)
    yield Trial("tests", DEVICE, "The tests that need a GPU pass", passes_its_tests)


def _on_a_small_machine() -> Iterator[Trial]:
    first, *others = _survivals()
    trainings = list(_trainings(SMALL_TRAININGS))
    yield from [first, *trainings[:2], *others[:2]]
    yield _sweep("The GPT of 4 blocks", _small_gpt(), (0.25, 0.5))
    yield _speed("The GPT of 4 blocks", _small_gpt())
    yield from trainings[2:]
    yield from others[2:]
    tuned = _tuned(4, 256, steps=6, adapter=_LORA)
    yield _tuning_speed("LoRA of 135M beside TRL", tuned, _SMOLLM)
    yield _sampling_speed(prompts=4, samples=4, tokens=32)


def _survivals() -> Iterator[Trial]:
    yield _survival("documents", "A GPT from scratch", DOCUMENTS)
    yield _survival("lora", "LoRA", EXAMPLES | {"adapter": {"rank": 4}})
    yield _survival("masked", "An encoder from scratch", MASKED)
    yield _survival("labels", "A classifier", LABELS)
    if importlib.util.find_spec("bitsandbytes"):
        yield _survival("qlora", "QLoRA", EXAMPLES | {"adapter": {"rank": 4}, "quantize": "nf4"})
    yield _survival("full", "Full fine-tuning", EXAMPLES)
    yield _survival("feedback", "Direct feedback alignment", FEEDBACK)


def _survival(name: str, title: str, recipe: Recipe) -> Trial:
    def run(place: Workplace) -> Outcome:
        return survives(place, name, recipe)

    return Trial(name, SURVIVAL, title, run)


def _trainings(listed: tuple["Training", ...], suffix: str = "") -> Iterator[Trial]:
    for each in listed:
        yield Trial(
            each.name + suffix,
            TRAINING,
            each.title + ", calibrated" * bool(suffix),
            functools.partial(_train, each, each.name + suffix),
        )


@dataclass(frozen=True)
class Training:
    """A short training.

    Attributes:
        shape: Shape of the published model that is tuned; "" where one is trained from scratch.
    """

    name: str
    title: str
    recipe: Recipe
    shape: str = ""


def _train(training: Training, name: str, place: Workplace) -> Outcome:
    recipe = dict(training.recipe)
    if training.shape:
        base = random_base(training.shape, place.folder / "bases")
        recipe["model"] = str(base.relative_to(place.folder))
    return trains_as_planned(place, name, recipe)


def _sweep(
    title: str,
    recipe: Recipe,
    shares: tuple[float, ...],
    others: Mapping[str, Changes] = MappingProxyType({}),
) -> Trial:
    def run(place: Workplace) -> Outcome:
        return beside_a_sweep(place, "sweep", recipe, shares, others)

    return Trial("sweep", TRAINING, f"{title}, beside other choices", run)


def _speed(title: str, recipe: Recipe) -> Trial:
    def run(place: Workplace) -> Outcome:
        return trains_beside_others(place, "speed", recipe)

    return Trial("speed", SPEED, title, run)


def _tuning_speed(title: str, recipe: Recipe, shape: str) -> Trial:
    def run(place: Workplace) -> Outcome:
        base = random_base(shape, place.folder / "bases")
        return tunes_beside_trl(place, "tuning-speed", recipe, base)

    return Trial("tuning-speed", SPEED, title, run)


def _sampling_speed(prompts: int, samples: int, tokens: int) -> Trial:
    def run(place: Workplace) -> Outcome:
        base = random_base(_SMOLLM, place.folder / "bases")
        return samples_beside_others(
            place, "sampling-speed", base, prompts=prompts, samples=samples, tokens=tokens
        )

    title = f"Samples of 135M, {prompts} prompts x {samples} texts"
    return Trial("sampling-speed", SPEED, title, run)


def _edge(place: Workplace) -> Outcome:
    return keeps_the_edge(place, "edge", _gpt(24, 16, 1024, 256, compile=False))


def _model(place: Workplace) -> Outcome:
    return models_the_allocator(place, "allocator", random_base(_SMOLLM, place.folder / "bases"))


def _monitor(place: Workplace) -> Outcome:
    return reads_like_nvidia_smi(place, "monitor", _gpt(12, 12, 768, 64, steps=60))


_SMALL = {
    "sequence_length": 64,
    "batch": {"sequences": 8},
    "training": {"steps": 120},
    "optimizer": {"learning_rate": 2e-3, "warmup": 10},
    "evaluation": {"every": 60, "max_sequences": 16},
    "checkpoint": {"every": 20},
    "sample": {"tokens": 16},
}
DOCUMENTS = _SMALL | {
    "model": {"architecture": "llama", "layers": 2, "heads": 2, "width": 64},
    "tokenizer": {"kind": "bpe", "vocabulary": 512},
    "data": {"path": DOCUMENTS_FILE, "validation": 0.05},
}
LONG_DOCUMENTS = DOCUMENTS | {
    "sequence_length": 1024,
    "training": {"steps": 60},
    "model": {"architecture": "llama", "layers": 4, "heads": 4, "width": 256},
    "evaluation": {"every": 30, "max_sequences": 4},
}
"""Rows of several blocks: kernels that add in no fixed order show only there."""
FEEDBACK = DOCUMENTS | {"method": "feedback"}
MASKED = DOCUMENTS | {
    "method": "mlm",
    "model": {"architecture": "modernbert", "layers": 2, "heads": 2, "width": 64, "mlp_width": 96},
}
BASES = tuple(f"{RUNS}/{name}/{MODEL_FOLDER}" for name in ("documents", "masked"))
"""Models of runs that further trials start from."""
EXAMPLES = _SMALL | {
    "method": "sft",
    "model": BASES[0],
    "data": {"path": EXAMPLES_FILE, "validation": 0.1},
}
LABELS = _SMALL | {
    "method": "classify",
    "model": BASES[1],
    "data": {"path": LABELLED_FILE, "text_column": "text", "label_column": "label"},
}


def _short(steps: int) -> dict[str, Any]:
    """Return what short trainings share: nothing is evaluated on the way."""
    return {
        "training": {"steps": steps},
        "optimizer": {"learning_rate": 1e-4, "warmup": 2},
        "evaluation": {"every": steps, "max_sequences": 8, "base": "never"},
        "checkpoint": {"every": steps},
        "sample": {"tokens": 16},
    }


def _gpt(
    layers: int, heads: int, width: int, sequences: int, *, steps: int = 20, **plan: Any
) -> Recipe:
    return _short(steps) | {
        "sequence_length": 1024,
        "batch": {"sequences": sequences},
        "model": {"architecture": "gpt2", "layers": layers, "heads": heads, "width": width},
        "tokenizer": {"kind": "bpe", "vocabulary": 16384},
        "data": {"path": ["builtin:python-docs", "builtin:python-code"], "validation": 0.01},
        "plan": plan,
    }


def _tuned(sequences: int = 16, length: int = 1024, *, steps: int = 20, **changes: Any) -> Recipe:
    plan = changes.pop("plan", {})
    return _short(steps) | {
        "method": "sft",
        "sequence_length": length,
        "batch": {"sequences": sequences},
        "data": {"path": FUNCTIONS_FILE, "validation": 0.05, "long_documents": "drop"},
        "plan": plan,
        **changes,
    }


_LORA = {"rank": 16}
_MANY_TOKENS = {"kind": "bpe", "vocabulary": 50304}
_SMOLLM, _QWEN_HALF, _QWEN, _LLAMA = (
    "HuggingFaceTB/SmolLM2-135M",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B",
    "meta-llama/Llama-3.1-8B",
)
CUDA_TRAININGS = (
    Training("gpt-124m", "GPT of 124M's shape, as planned", _gpt(12, 12, 768, 128)),
    Training("lora-8b", "LoRA of 8B, as planned", _tuned(adapter=_LORA), _LLAMA),
    Training("qlora-8b", "QLoRA of 8B", _tuned(adapter=_LORA, quantize="nf4"), _LLAMA),
    Training("full-1.5b", "Full tuning of 1.5B", _tuned(), _QWEN),
    Training("gpt-124m-compiled", "GPT, compiled", _gpt(12, 12, 768, 128, compile=True)),
    Training(
        "gpt-124m-50k",
        "GPT, compiled, of 50k tokens",
        {**_gpt(12, 12, 768, 128, compile=True), "tokenizer": _MANY_TOKENS},
    ),
    Training(
        "lora-0.5b-compiled",
        "LoRA of 0.5B, compiled",
        _tuned(64, adapter=_LORA, plan={"compile": True}),
        _QWEN_HALF,
    ),
    Training("gpt-124m-eager", "GPT, not compiled", _gpt(12, 12, 768, 128, compile=False)),
    Training("lora-0.5b", "LoRA of 0.5B", _tuned(64, adapter=_LORA), _QWEN_HALF),
    Training("full-135m", "Full tuning of 135M", _tuned(64), _SMOLLM),
    Training(
        "gpt-124m-recomputed",
        "GPT, activations recomputed",
        _gpt(12, 12, 768, 128, compile=False, recompute=True),
    ),
    Training("gpt-124m-fp32", "GPT in fp32", _gpt(12, 12, 768, 64, precision="fp32")),
    Training("gpt-124m-single", "GPT, micro-batches of 1", _gpt(12, 12, 768, 8, micro_batch=1)),
    Training(
        "gpt-124m-whole-loss",
        "GPT, all logits at once",
        _gpt(12, 12, 768, 64, micro_batch=16, loss_chunk=1 << 20, compile=False),
    ),
    Training("gpt-355m", "GPT of 355M's shape, as planned", _gpt(24, 16, 1024, 128)),
    Training(
        "gpt-355m-recomputed",
        "GPT of 355M's shape, recomputed",
        _gpt(24, 16, 1024, 128, recompute=True),
    ),
    Training("lora-135m", "LoRA of 135M", _tuned(64, adapter=_LORA), _SMOLLM),
    Training(
        "lora-135m-padded",
        "LoRA of 135M, rows padded",
        _tuned(64, adapter=_LORA, plan={"packing": "padded"}),
        _SMOLLM,
    ),
    Training("full-0.5b", "Full tuning of 0.5B", _tuned(32), _QWEN_HALF),
    Training("qlora-0.5b", "QLoRA of 0.5B", _tuned(32, adapter=_LORA, quantize="nf4"), _QWEN_HALF),
    Training("lora-1.5b", "LoRA of 1.5B", _tuned(32, adapter=_LORA), _QWEN),
    Training("qlora-1.5b", "QLoRA of 1.5B", _tuned(32, adapter=_LORA, quantize="nf4"), _QWEN),
    Training(
        "full-1.5b-recomputed",
        "Full tuning of 1.5B, recomputed",
        _tuned(plan={"recompute": True, "compile": False}),
        _QWEN,
    ),
    Training(
        "lora-8b-recomputed",
        "LoRA of 8B, recomputed",
        _tuned(adapter=_LORA, plan={"recompute": True}),
        _LLAMA,
    ),
    Training(
        "lora-8b-single",
        "LoRA of 8B, micro-batches of 1",
        _tuned(4, adapter=_LORA, plan={"micro_batch": 1}),
        _LLAMA,
    ),
    Training(
        "qlora-8b-long",
        "QLoRA of 8B, 4,096 tokens",
        _tuned(8, 4096, adapter=_LORA, quantize="nf4"),
        _LLAMA,
    ),
    Training(
        "lora-8b-eager",
        "LoRA of 8B, not compiled",
        _tuned(adapter=_LORA, plan={"compile": False}),
        _LLAMA,
    ),
)


def _small_gpt(**plan: Any) -> Recipe:
    shape = {"architecture": "llama", "layers": 4, "heads": 4, "width": 256}
    small = {
        "sequence_length": 256,
        "model": shape,
        "tokenizer": {"kind": "bpe", "vocabulary": 4096},
        "data": {"path": DOCUMENTS_FILE, "validation": 0.05},
    }
    return {**_gpt(4, 4, 256, 8, steps=12, **plan), **small}


SMALL_TRAININGS = (
    Training("gpt", "A GPT of 4 blocks, as planned", _small_gpt()),
    Training("lora-135m", "LoRA of 135M", _tuned(2, 256, steps=6, adapter=_LORA), _SMOLLM),
    Training("gpt-recomputed", "The GPT, recomputed", _small_gpt(recompute=True)),
    Training(
        "qlora-135m",
        "QLoRA of 135M",
        _tuned(2, 256, steps=6, adapter=_LORA, quantize="nf4"),
        _SMOLLM,
    ),
)
