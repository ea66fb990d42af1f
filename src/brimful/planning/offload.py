"""Activation offloading in a plan: how many bytes move, and how long that takes."""

from dataclasses import replace

from brimful.planning.step import StepSpec
from brimful.planning.timing import StepTime

LINK_BYTES_PER_S = 10e9
"""Between a GPU and page-locked memory of its host: a third generation PCIe link of 16 lanes has
15.75 GB/s in each direction, of which copies reach about two thirds (assumption; newer links are
two to four times as fast).
"""
TERM = "copies to the host and back"


def offloaded_bytes(spec: StepSpec, sequences: int) -> int:
    """Return the bytes of the inputs of all blocks, for so many sequences of full length. Under
    autocast weights in fp32 make hidden states in fp32.
    """
    config = spec.config
    width, blocks = (
        next(int(config[key]) for key in keys if config.get(key))
        for keys in (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"))
    )
    itemsize = 4 if spec.weights == "fp32" else 2
    return blocks * sequences * spec.sequence_length * width * itemsize


def with_offloading(time: StepTime, spec: StepSpec, sequences: int) -> StepTime:
    """Return the time of a step with the copies of its activations. They are counted whole, because
    nothing else is computed meanwhile.
    """
    if not spec.cuda:
        return time
    seconds = 2 * offloaded_bytes(spec, sequences) / LINK_BYTES_PER_S
    return replace(
        time,
        seconds=time.seconds + seconds,
        terms={**time.terms, TERM: seconds},
        slowest_host_s=time.slowest_host_s + seconds,
    )
