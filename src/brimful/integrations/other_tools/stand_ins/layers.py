"""Linear layers of AutoGPTQ and of bitsandbytes without double quantisation, and adapters of peft,
on models without weights.
"""

import json
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import PlanError
from brimful.integrations.other_tools.step import PeftAdapter
from brimful.model.published import import_adapters
from brimful.rehearsal.models import DTYPES, NF4_BLOCK, PEFT_TASKS, Linear4bit, PackedLinear
from brimful.rehearsal.recorder import note_kernel


def with_peft(model: nn.Module, adapter: PeftAdapter, task: str) -> nn.Module:
    """A model with what peft makes of a configuration, all else frozen.

    Raises:
        PlanError: peft cannot attach it.
    """
    import_adapters()
    # Half a second that other steps do not need.
    from peft import PeftConfig, get_peft_model  # noqa: PLC0415
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING  # noqa: PLC0415

    settings = json.loads(adapter.settings_json)
    config: PeftConfig = PEFT_TYPE_TO_CONFIG_MAPPING[adapter.peft_type](
        task_type=PEFT_TASKS.get(task), **settings
    )
    if config.is_prompt_learning:
        raise PlanError(
            f"{adapter.peft_type} puts virtual tokens before every sequence; brimful does not trace"
            " that."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
        )  # as in with_adapters
        try:
            model = get_peft_model(model, config)
        except (ValueError, RuntimeError) as error:
            raise PlanError(f"{adapter.peft_type} cannot be attached: {error}") from error
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(DTYPES[adapter.dtype])
    return model


class SinglyQuantized(Linear4bit):
    """Memory of bitsandbytes' NF4 layer without double quantisation: an fp32 scale per 64 weights.
    For a product they are copied, as with double quantisation, which the original does not do.
    """

    def __init__(self, like: nn.Linear, compute_dtype: torch.dtype) -> None:
        super().__init__(like, compute_dtype)
        count = like.in_features * like.out_features
        scales = torch.empty(-(-count // NF4_BLOCK), dtype=torch.float32, device="meta")
        self.register_buffer("scales", scales)
        for name in ("outer_scales", "codes"):
            self.register_buffer(name, torch.empty(16, dtype=torch.float32, device="meta"))


class Linear8bit(Linear4bit):
    """Memory of bitsandbytes' LLM.int8 layer: a byte per weight and an fp32 scale per output. peft
    copies the output of one in 4 bits, and so of this one, which the original does not do.
    """

    def __init__(self, like: nn.Linear, compute_dtype: torch.dtype) -> None:
        super().__init__(like, compute_dtype)
        weight = torch.empty((like.out_features, like.in_features), dtype=torch.int8, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scales", torch.empty(like.out_features, device="meta"))
        for name in ("outer_scales", "codes"):
            self.register_buffer(name, torch.empty(0, device="meta"))

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = _Matmul8bit.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


class _Matmul8bit(torch.autograd.Function):
    """bitsandbytes 0.50.2, autograd/_functions.py (MatMul8bitLt), backends/{cuda,default}/ops.py:
    the input in fp16 is compared with the threshold of outliers and made 8-bit, the product is in
    int32; the input stays, and the weight is made 16-bit for the gradient. Columns of outliers are
    not counted.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        rows_NK = inputs.reshape(-1, inputs.shape[-1])
        halves_NK = rows_NK.to(torch.float16)
        outliers_NK = halves_NK.abs() >= 1
        bytes_NK = torch.empty_like(halves_NK, dtype=torch.int8)
        del halves_NK, outliers_NK
        out_features = weight.shape[0]
        whole_NM = torch.empty((rows_NK.shape[0], out_features), dtype=torch.int32)
        size = 2 * whole_NM.numel() * rows_NK.shape[1]
        shape = (1, *whole_NM.shape, rows_NK.shape[1])
        note_kernel(
            "int8_matmul", "matrix", (bytes_NK, weight), (whole_NM,), flop=size, shape=shape
        )
        out = whole_NM.to(torch.float16).to(inputs.dtype)
        if bias is not None:
            out = out + bias
        return out.reshape(*inputs.shape[:-1], out_features)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        inputs, weight = ctx.saved_tensors
        whole = weight.to(inputs.dtype).mul_(1.0)
        return grad_outputs[0].to(inputs.dtype) @ whole, None, None


class LinearGptq(PackedLinear):
    """Memory of an AutoGPTQ layer with Triton kernels, which unpack in registers; its values mean
    nothing.

    Eight 4-bit weights in an int32, an fp16 scale and a packed zero per group and output, a group's
    index per input.
    """

    def __init__(self, like: nn.Linear, group: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        groups = -(-like.in_features // (group or like.in_features))
        self.weight = nn.Parameter(
            torch.empty(
                (like.in_features // 8, like.out_features), dtype=torch.int32, device="meta"
            ),
            requires_grad=False,
        )
        self.register_buffer(
            "scales", torch.empty((groups, like.out_features), dtype=torch.float16, device="meta")
        )
        self.register_buffer(
            "zeros", torch.empty((groups, like.out_features // 8), dtype=torch.int32, device="meta")
        )
        self.register_buffer(
            "groups", torch.empty(like.in_features, dtype=torch.int32, device="meta")
        )
        self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        out: Tensor = _MatmulGptq.apply(input.to(dtype), self.out_features)  # type: ignore[no-untyped-call]
        return out


class _MatmulGptq(torch.autograd.Function):
    """Keeps nothing but the packed weight, forward and backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, out_features: int) -> Tensor:
        ctx.in_features = inputs.shape[-1]
        out = torch.empty((*inputs.shape[:-1], out_features), dtype=inputs.dtype)
        _note_gptq(inputs, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None]:
        grad = grad_outputs[0]
        if not ctx.needs_input_grad[0]:
            return None, None
        grad_inputs = torch.empty((*grad.shape[:-1], ctx.in_features), dtype=grad.dtype)
        _note_gptq(grad, grad_inputs)
        return grad_inputs, None


def _note_gptq(inputs: Tensor, out: Tensor) -> None:
    """A product with a weight that is unpacked in registers: half a byte each."""
    k, n = inputs.shape[-1], out.shape[-1]
    m = inputs.numel() // k
    note_kernel(
        "gptq_matmul",
        "matrix",
        (inputs,),
        (out,),
        flop=2 * m * n * k,
        shape=(1, m, n, k),
        extra_bytes=n * k // 2,
    )
