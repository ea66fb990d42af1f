"""What three other estimators say about a published run: the memory they predict, or why they
cannot.

python benchmarks/memory_peers.py

Each peer is asked as its own documentation says, with the best settings it offers for the row, and
never over the network. What each one counts was read in the code of the versions pinned in
`benchmarks/requirements.txt`.

accelerate 1.15.0, `accelerate estimate-memory` (commands/estimate.py)
    Counts: tensors of `AutoModel.from_config` in fp32 on the meta device; that model has no
    language-model head, so an untied head is missing (Mistral-7B: 7.11e9 of 7.24e9 parameters).
    "Training using Adam" is the largest of model, gradients, optimizer and step: 16 bytes per
    parameter in float32, 8 in float16. It is not a sum in float16. Leaves out: batch, sequence
    length, activations, logits, adapters, context, allocator. int8 and int4 have no training
    figure. Asked here: the functions below the command, because the command itself asks the hub for
    the model first.

fitcheck-llm 0.3.1, `fitcheck MODEL` (estimator.py, memory/*.py, docs/SPEC.md)
    Counts: weights (2 or 4 bytes; NF4 0.5625, with double quantisation 0.5159, embeddings, head and
    norms of a quantised base in fp32), adapters and their gradients in fp32, optimizer states, and
    for full tuning in 16 bits always an fp32 master copy: its specification says that pure bf16
    tuning is over-counted for that. Activations: 12 H + 3 Q + KV + 3 I per token and layer, with
    recomputation one tensor per layer plus max(layer, logits), logits 3.5 or 4 fp32 copies of T x
    V, attention scores unless flash. Overhead: four profiles measured on a T4, elsewhere 500 MiB
    plus 5 % of weights and activations. Leaves out: foreach temporaries, fused losses, more than
    one GPU, torch.compile, recomputation that is selective. Refuses mixtures of experts and models
    whose count differs from its gated-MLP formula by more than 2 % (GPT-2, whose config.json it
    cannot read either), and quantised full tuning. Asked here: its parser's functions on the dict,
    with the true count where it would ask the hub; then the public `estimate`.

ftuneai 0.4.1, `Estimator(...)` (core/memory.py, hub.py)
    Counts: weights (4-bit: 0.51 bytes for every parameter, embeddings too), bf16 adapters and
    gradients, 8 bytes of Adam state per trained parameter whatever its dtype, activations T x H x L
    x 2 bytes x (4 with recomputation, 10 without), halved by flash attention, doubled for QLoRA,
    and 20 % of it all for context and fragmentation. Leaves out: logits, loss, MLP width and heads
    in the activations; fp32 gradients; an untied head in the count that it makes from config.json
    (Mistral-7B: 7.11e9; only its own table of 21 models holds published counts); LoRA targets other
    than q+v, q+k+v+o and all linear layers. FSDP divides weights, gradients and states by the
    number of GPUs and adds 5 % of the weights. Refuses sequences past the model's positions. Asked
    here: its table where it has the model's id, else its hub reader on the dict. The dtype of the
    weights is the row's.

accelerate and ftuneai print GB and mean GiB. Kernels of a trainer (Unsloth, fused losses) are
beyond all three; such rows are asked all the same.
"""

import csv
import dataclasses
import functools
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any
from unittest import mock

GIB = 1 << 30
REQUIREMENTS = "pip install -c constraints.txt -r benchmarks/requirements.txt"
PINNED = {"accelerate": "1.15.0", "fitcheck-llm": "0.3.1", "ftuneai": "0.4.1"}

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_ALL_LINEAR = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")
_FTUNE_TARGETS = {
    frozenset(("q_proj", "v_proj")): "attention",
    frozenset(_ATTENTION): "attention_all",
    frozenset(_ALL_LINEAR): "all_linear",
}
_FTUNE_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_DEFAULT_RANK = 16  # of both fitcheck and ftuneai, where a row names the targets but not the rank


@dataclass(frozen=True)
class Estimate:
    """A peer's answer: what it prints, the same without the part it calls overhead, or neither and
    the reason.
    """

    gib: float | None = None
    tensors_gib: float | None = None
    reason: str = ""

    def beside(self, memory_kind: str) -> float | None:
        """GiB to hold against a measurement of that kind: allocated memory knows no context and no
        fragmentation, so no overhead either.
        """
        return self.tensors_gib if memory_kind.startswith("allocated") else self.gib


Peer = Callable[[Mapping[str, str], Mapping[str, Any], int], Estimate]


class CannotTakeError(ValueError):
    """The row asks for something the peer has no input for, or does not say something the peer
    needs.
    """


@dataclass(frozen=True)
class Job:
    """A row of the table in the words that the peers share. `rank` and `targets` are empty for full
    training.
    """

    method: str
    micro_batch: int
    sequence_length: int
    recompute: bool
    flash: bool
    weights: str
    compute: str
    optimizer: str
    rank: int | None
    targets: tuple[str, ...]


def accelerate(row: Mapping[str, str], config: Mapping[str, Any], parameters: int) -> Estimate:
    """`accelerate estimate-memory`: "Training using Adam", float32 without autocast, else float16.
    It counts `parameters` itself.

    Raises: ImportError when the pinned version is not there.
    """
    del parameters
    _require("accelerate")
    from accelerate.commands.estimate import estimate_training_usage

    def ask() -> Estimate:
        _require_config(config)
        if _method(row) != "full":
            raise CannotTakeError("it trains every parameter: no adapters, no quantised base")
        _require_one_gpu(row)
        weights, compute = _dtypes(row)
        total_bytes = _accelerate_fp32_bytes(json.dumps(dict(config), sort_keys=True))
        column = "float32" if weights == compute == "fp32" else "float16"
        gib = max(estimate_training_usage(total_bytes, column).values()) / GIB
        return Estimate(gib, gib)

    return _answered(ask)


def fitcheck(row: Mapping[str, str], config: Mapping[str, Any], parameters: int) -> Estimate:
    """`fitcheck MODEL`: its point estimate. `parameters` are the base model's, as the hub reports
    them from safetensors.

    NF4 rows count as doubly quantised (bitsandbytes trainers of the table are) unless the row has
    `double_quant` other than "yes".

    Raises: ImportError when the pinned version is not there.
    """
    _require("fitcheck-llm")
    from fitcheck import TrainingConfig, estimate, get_gpu

    def ask() -> Estimate:
        _require_config(config)
        _require_one_gpu(row)
        job = _job(row)
        if _text(row, "compile").startswith("yes"):
            raise CannotTakeError("its README puts compiled runs outside its model")
        if "gptq" in _text(row, "model", "notes"):
            raise CannotTakeError("it knows NF4 and int8 bases, not GPTQ")
        training = TrainingConfig(
            precision=job.compute,
            quantization="nf4" if job.method == "qlora" else "none",
            double_quant=job.method == "qlora" and row.get("double_quant", "yes") == "yes",
            optimizer={"adamw": "adamw", "adamw_8bit": "adam8bit"}[job.optimizer],
            optimizer_dtype="fp32" if job.method != "full" or job.weights == "fp32" else "bf16",
            batch_size=job.micro_batch,
            seq_len=job.sequence_length,
            lora_rank=job.rank,
            lora_targets=list(job.targets),
            grad_checkpoint=job.recompute,
            flash_attn=job.flash,
        )
        # Of a GPU only the T4's measured overhead changes the total; any other gets the default profile.
        gpu = (
            get_gpu("t4")
            if row.get("gpu") == "Tesla T4"
            else get_gpu(row.get("gpu") or "GPU", vram_mib=81_920)
        )
        report = estimate(_fitcheck_model(row, config, parameters), training, gpu)
        return Estimate(report.total_mib / 1024, (report.total_mib - report.overhead_mib) / 1024)

    return _answered(ask)


def ftuneai(row: Mapping[str, str], config: Mapping[str, Any], parameters: int) -> Estimate:
    """`ftuneai.Estimator(...).estimate_memory()`: GiB per GPU. It counts `parameters` itself, from
    the config.

    Raises: ImportError when the pinned version is not there.
    """
    del parameters
    _require("ftuneai")
    from ftuneai import TrainingConfig
    from ftuneai.core.memory import MemoryEstimator
    from ftuneai.core.models import (
        FineTuneMethod,
        LoRATarget,
        OptimizerType,
        Quantization,
        ShardingStrategy,
    )

    def ask() -> Estimate:
        _require_config(config)
        job = _job(row)
        if job.targets and frozenset(job.targets) not in _FTUNE_TARGETS:
            raise CannotTakeError("LoRA targets other than q+v, q+k+v+o or all linear layers")
        num_gpus = _whole(row, "num_gpus", 1)
        training = TrainingConfig(
            method=FineTuneMethod(job.method),
            quantization=Quantization.INT4 if job.method == "qlora" else Quantization.NONE,
            batch_size=job.micro_batch,
            seq_length=job.sequence_length,
            gradient_checkpointing=job.recompute,
            optimizer={"adamw": OptimizerType.ADAMW, "adamw_8bit": OptimizerType.ADAM_8BIT}[
                job.optimizer
            ],
            lora_rank=job.rank or _DEFAULT_RANK,
            lora_target=(
                LoRATarget(_FTUNE_TARGETS[frozenset(job.targets)])
                if job.targets
                else LoRATarget.ATTENTION
            ),
            flash_attention=job.flash,
            sharding=(
                ShardingStrategy.FSDP
                if num_gpus > 1 and "fsdp" in _text(row, "notes", "method", "source_repo")
                else ShardingStrategy.NONE
            ),
            num_gpus=num_gpus,
        )
        memory = MemoryEstimator(
            _ftune_model(row, config, _FTUNE_DTYPES[job.weights]), training
        ).estimate()
        return Estimate(memory.total_gb, memory.total_gb - memory.overhead_gb)

    return _answered(ask)


PEERS: Mapping[str, Peer] = {"accelerate": accelerate, "fitcheck-llm": fitcheck, "ftuneai": ftuneai}


def _require(package: str) -> None:
    """Raises: ImportError naming the command that brings the version whose inner functions are
    called here.
    """
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = "nothing"
    if found != PINNED[package]:
        raise ImportError(f"This needs {package} {PINNED[package]}, found {found}: {REQUIREMENTS}")


def _answered(ask: Callable[[], Estimate]) -> Estimate:
    """The peer's answer; its refusal (both packages raise ValueErrors) becomes the reason, first
    sentence only.
    """
    try:
        return ask()
    except (ValueError, KeyError) as refusal:
        return Estimate(reason=re.split(r"\. |\n", str(refusal))[0])


@functools.lru_cache(maxsize=64)
def _accelerate_fp32_bytes(config_json: str) -> int:
    """Bytes in fp32 of the model that the command builds: `AutoModel`, empty, as in
    commands/estimate.py.
    """
    import torch
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    values = json.loads(config_json)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with init_empty_weights():
        model = AutoModel.from_config(config, dtype=torch.float32)
    return int(calculate_maximum_sizes(model)[0])


def _fitcheck_model(row: Mapping[str, str], config: Mapping[str, Any], parameters: int) -> Any:
    """The steps of its `fetch_model_config` after the download, refusals included."""
    from fitcheck import ModelConfig, config_parser

    name = row.get("model") or "local"
    config_parser._reject_unsupported(config, name)
    fields = config_parser._parse_fields(config)
    count = config_parser._reconcile_param_count(
        name, parameters, config_parser._count_params(fields)
    )
    return ModelConfig(name=name, num_params=count, **dataclasses.asdict(fields))


def _ftune_model(row: Mapping[str, str], config: Mapping[str, Any], dtype: str) -> Any:
    """The steps of its `get_model`, without its search for ids that merely contain this one."""
    from ftuneai import hub, loader

    name = row.get("model") or "local"
    known = loader.load_models().get(name)
    if known is not None:
        return dataclasses.replace(known, default_dtype=dtype)
    with mock.patch.object(
        hub, "fetch_model_config", return_value={**config, "torch_dtype": dtype}
    ):
        return hub.resolve_model_from_hub(name)


def _job(row: Mapping[str, str]) -> Job:
    """Raises: CannotTakeError for what no peer has an input for, and for what the row leaves
    open.
    """
    method = _method(row)
    weights, compute = _dtypes(row)
    return Job(
        method=method,
        micro_batch=_whole(row, "micro_batch"),
        sequence_length=_whole(row, "seq_len"),
        recompute=_recomputes(row),
        flash=_is_flash(row),
        weights=weights,
        compute=compute,
        optimizer=_optimizer(row),
        rank=None if method == "full" else _whole(row, "lora_rank", _DEFAULT_RANK),
        targets=() if method == "full" else _targets(row),
    )


def _text(row: Mapping[str, str], *names: str) -> str:
    return " ".join(row.get(name) or "" for name in names).lower()


def _whole(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The number that the field starts with ("64 (script default)"); the default only for an empty
    field.
    """
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    number = re.match(r"\d+(?=\s|$)", text)
    if number is None:
        raise CannotTakeError(f"the row's {name} is {text!r}, not a number")
    return int(number.group())


def _require_config(config: Mapping[str, Any]) -> None:
    if not config:
        raise CannotTakeError("no published config.json for this model")


def _require_one_gpu(row: Mapping[str, str]) -> None:
    if _whole(row, "num_gpus", 1) != 1:
        raise CannotTakeError("it knows one GPU only")


def _method(row: Mapping[str, str]) -> str:
    method = row.get("method") or ""
    if method.startswith("peft:"):
        raise CannotTakeError("an adapter method other than LoRA")
    if method not in {"full", "pretrain", "lora", "qlora"}:
        raise CannotTakeError(f"a method that it does not know: {method or 'none named'}")
    return "full" if method == "pretrain" else method


def _dtypes(row: Mapping[str, str]) -> tuple[str, str]:
    """Dtype of the weights and of the computation, each fp32, fp16 or bf16."""
    text = _text(row, "precision")
    if "not stated" in text or "float8" in text or "fp8" in text or not text:
        raise CannotTakeError(f"a precision that it does not know: {text or 'none named'}")
    if text.startswith("fp32"):
        return "fp32", "bf16" if "bf16" in text else "fp16" if "fp16" in text else "fp32"
    is_half = "float16" in text.replace("bfloat16", "") or "fp16" in text
    lacks_bf16 = row.get("gpu") == "Tesla T4" and "bf" not in text
    return ("fp16", "fp16") if is_half or lacks_bf16 else ("bf16", "bf16")


def _recomputes(row: Mapping[str, str]) -> bool:
    text = _text(row, "activation_checkpointing")
    if text.startswith(("yes", "true", "full")):
        return True
    if text in {"no", "false"}:
        return False
    raise CannotTakeError(f"recomputation is {text or 'not named'}: it knows all or none")


def _is_flash(row: Mapping[str, str]) -> bool:
    """Whether attention keeps no score matrix. "HF" alone is the eager attention that transformers
    had by default in 2023.
    """
    text = _text(row, "attention_impl")
    if not text:
        raise CannotTakeError("the row does not name the attention kernel")
    return any(word in text for word in ("flash", "sdpa", "fa2", "fa3", "flex", "unsloth"))


def _optimizer(row: Mapping[str, str]) -> str:
    """AdamW where a row names none: with adapters its states are small, and it is the default of
    each trainer in the table.
    """
    text = _text(row, "optimizer")
    if "muon" in text or "lora-fa" in text:
        raise CannotTakeError(f"an optimizer that it does not know: {text}")
    if "8bit" in text:
        return "adamw_8bit"
    if text and "adamw" not in text:
        raise CannotTakeError(f"an optimizer that it does not know: {text}")
    return "adamw"


def _targets(row: Mapping[str, str]) -> tuple[str, ...]:
    text = _text(row, "lora_targets")
    if text.startswith("all linear"):
        return _ALL_LINEAR
    names = {name if "_" in name else f"{name}_proj" for name in text.split("+") if name}
    if not names:
        raise CannotTakeError("the row does not name the LoRA targets")
    if not names <= set(_ALL_LINEAR):
        raise CannotTakeError(f"LoRA targets that it does not know: {text}")
    return tuple(name for name in _ALL_LINEAR if name in names)


# Values of the published config.json of mistralai/Mistral-7B-v0.1 and of openai-community/gpt2, the latter with the padded vocabulary of the run below.
_CONFIGS: Mapping[str, tuple[dict[str, Any], int]] = {
    "mistralai/Mistral-7B-v0.1": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }
        | {
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        },
        7_241_732_096,
    ),
    "GPT-2 124M": (
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50304,
        },
        124_475_904,
    ),
}
# Published by foundation-model-stack/fms-acceleration (A100, no fused kernels; NF4: the trainer's own path, 15.25 accelerated, 13.15 with fused kernels)
# and by one public script for GPT-2 124M on rented GPUs.
_EXAMPLES = """\
model,gpu,method,lora_rank,lora_targets,seq_len,micro_batch,precision,optimizer,activation_checkpointing,attention_impl,compile,peak_memory_gib,memory_kind
mistralai/Mistral-7B-v0.1,A100,full,,,4096,4,bfloat16 weights,AdamW,yes,flash_attention_2,no,67.46,allocated
mistralai/Mistral-7B-v0.1,A100,lora,16,q+k+v+o,4096,4,bfloat16 weights,AdamW,yes,flash_attention_2,no,24.87,allocated
mistralai/Mistral-7B-v0.1,A100,qlora,16,q+k+v+o,4096,4,bfloat16 weights,AdamW,yes,flash_attention_2,no,19.25,allocated
GPT-2 124M,A100,pretrain,,,1024,32,fp32 weights + bf16 autocast,AdamW fused,no,sdpa,yes,23.98,nvidia-smi
"""


def main() -> None:
    """Four published runs and what each peer says of them."""
    for row in csv.DictReader(io.StringIO(_EXAMPLES)):
        print(
            f"{row['model']} {row['method']}, {row['micro_batch']} x {row['seq_len']}: measured"
            f" {row['peak_memory_gib']} GiB {row['memory_kind']}"
        )
        for name, predict in PEERS.items():
            said = predict(row, *_CONFIGS[row["model"]])
            if said.gib is None or said.tensors_gib is None:
                print(f"  {name:<13} cannot: {said.reason}")
            else:
                print(
                    f"  {name:<13} {said.gib:7.2f} GiB, without its overhead"
                    f" {said.tensors_gib:7.2f}"
                )


if __name__ == "__main__":
    main()
