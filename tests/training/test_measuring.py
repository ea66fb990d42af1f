"""What a method measures of a step: without gradients, dropout or random numbers."""

from collections.abc import Callable
from pathlib import Path

import torch
from small_models import write_base_model
from transformers import LlamaForCausalLM

from brimful.data.batches import MicroBatch
from brimful.training.measuring import by_all, measured
from brimful.training.method import Method, Network, hidden_states_of
from brimful.training.precision import Precision
from brimful.training.world import ALONE

CPU = torch.device("cpu")


def _network(folder: Path) -> Network:
    model = LlamaForCausalLM.from_pretrained(write_base_model(folder), dtype=torch.float32)
    model.config.attention_dropout = 0.5
    return Network(model.train(), hidden_states_of(model), loss_chunk=8)


def test_a_step_is_measured_without_gradients_dropout_or_random_numbers(tmp_path: Path) -> None:
    network, before = _network(tmp_path), torch.get_rng_state()
    micro = MicroBatch(torch.arange(8)[None], torch.arange(8)[None])
    method = Method(
        lambda *_: torch.zeros(()), measure=lambda net, each: net.hidden_states(each).sum()
    )

    def measure(count: int, divisor: float) -> Callable[[], Network]:
        pieces = [micro] * count
        return lambda: measured(network, method, Precision("fp32"), CPU, pieces, divisor)

    once, thrice = (by_all(ALONE, measure(count, count)).of_step for count in (1, 3))

    assert once is not None
    assert thrice is not None
    assert not once.requires_grad
    torch.testing.assert_close(once, thrice)
    assert torch.equal(torch.get_rng_state(), before)
    assert network.model.training


def test_a_method_that_measures_nothing_is_left_alone(tmp_path: Path) -> None:
    network = _network(tmp_path)
    method = Method(lambda *_: torch.zeros(()))

    assert measured(network, method, Precision("fp32"), CPU, iter([]), 1.0) is network
