"""A GGUF file as a model folder: its weights as plain numbers in safetensors, its tokenizer, its
config.
"""

import contextlib
import io
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from brimful.base.errors import PlanError
from brimful.model.gguf_file import GgufFile
from brimful.model.published import absent_weights, reading, refuse_missing
from brimful.model.quiet import without_progress_bars

STEPS: dict[str, tuple[int, int, bool]] = {
    "Q4_0": (32, 16, True),
    "Q4_1": (32, 15, False),
    "Q5_0": (32, 32, True),
    "Q5_1": (32, 31, False),
    "Q8_0": (32, 254, True),
    "Q2_K": (16, 3, False),
    "Q3_K": (16, 8, True),
    "Q4_K": (32, 15, False),
    "Q5_K": (32, 31, False),
    "Q6_K": (16, 64, True),
}
"""Types that round weights to equal steps: weights that share a step size, steps from the lowest to
the highest value, and whether these lie evenly about 0.
"""
SAMPLE_WEIGHTS = 1 << 20
"""Number of weights of each tensor from which the rounding error is estimated."""


def convert(file: GgufFile, folder: Path) -> float | None:
    """Write the model of a GGUF file into a folder in Hugging Face layout, in fp32, which holds
    every stored value exactly.

    Returns:
        The rounding that the file's types brought, as a share of the weights (root mean square of
        both); None where types are not known well enough.

    Raises:
        PlanError: transformers cannot read the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Alone in a folder, because transformers also reads what lies beside the file.
    alone = folder / "source"
    alone.mkdir()
    name = "model.gguf"
    try:
        os.symlink(file.path.resolve(), alone / name)
    except OSError:  # a system or a disk without links
        shutil.copyfile(file.path, alone / name)
    with (
        reading(lambda error: _unreadable(file, error)),
        without_progress_bars(),
        # Its bar over tensors has no switch.
        contextlib.redirect_stderr(io.StringIO()),
    ):
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=name)
        model, info = AutoModelForCausalLM.from_pretrained(
            alone,
            gguf_file=name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            output_loading_info=True,
        )
        refuse_missing(absent_weights(info), file.path)
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        share = rounding(file)
    shutil.rmtree(alone)
    return share


def rounding(file: GgufFile) -> float | None:
    """Return the rounding of a file's weights as `convert` does, from the steps of its blocks:
    rounding to the nearest of equal steps is off by step / sqrt(12), root mean square.
    """
    from gguf import GGUFReader, dequantize  # noqa: PLC0415 - an optional package

    error, size = 0.0, 0.0
    for tensor in GGUFReader(file.path).tensors:
        kind = tensor.tensor_type.name
        if kind in {"F64", "F32", "F16", "BF16"}:
            continue
        if kind not in STEPS:
            return None
        block, steps, is_even = STEPS[kind]
        rows = max(1, SAMPLE_WEIGHTS // int(tensor.shape[0]))
        data = tensor.data.reshape(-1, tensor.data.shape[-1])[:rows]
        values = dequantize(data, tensor.tensor_type).reshape(-1, block).astype(np.float64)
        spread = 2 * np.abs(values).max(1) if is_even else values.max(1) - values.min(1)
        share = tensor.n_elements / values.size
        error += share * block * float(np.square(spread / steps).sum()) / 12
        size += share * float(np.square(values).sum())
    return float(np.sqrt(error / size)) if size else 0.0


def _unreadable(file: GgufFile, error: Exception) -> PlanError:
    reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    return PlanError(
        f"{file.path} cannot be turned into a model folder: {reason}. Use the model's Hugging Face"
        " folder, or another file of it."
    )
