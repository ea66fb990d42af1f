"""Recorded steps with activations on the host: what the device still holds."""

import torch
from transformers import LlamaConfig

from brimful.base.types import JsonDict
from brimful.planning.offload import offloaded_bytes
from brimful.planning.step import StepSpec, canonical
from brimful.rehearsal.away import NotOnCuda
from brimful.rehearsal.training import record_training


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
