"""A method is found by the name of its file and sees the model as body and head."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from small_models import write_base_model
from syrupy.assertion import SnapshotAssertion
from torch._dynamo.backends.debugging import aot_eager
from transformers import LlamaForCausalLM, PreTrainedModel, RwkvConfig, RwkvForCausalLM

from brimful.base.errors import BrimfulError
from brimful.data.batches import IGNORED, MicroBatch
from brimful.model.attention import NAME
from brimful.model.build import build
from brimful.recipe.kinds import training_methods
from brimful.training.losses import piece_losses
from brimful.training.memory_errors import OutOfMemory, attempt
from brimful.training.method import (
    Method,
    Network,
    by_all,
    compiled,
    compiled_piece_losses,
    find_method,
    hidden_states_of,
    measured,
)
from brimful.training.precision import Precision
from brimful.training.world import ALONE


@pytest.fixture
def model(tiny: MakeRecipe) -> PreTrainedModel:
    return build(
        tiny(), vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )


@pytest.fixture
def _own_compiler() -> Iterator[None]:
    """What the compiler found out, or failed at, in one test is forgotten in the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _micro(ids_BT: torch.Tensor) -> MicroBatch:
    return MicroBatch(ids_BT, ids_BT)


@pytest.mark.parametrize("name", training_methods())
def test_every_method_of_a_kind_of_run_has_its_file(name: str) -> None:
    assert isinstance(find_method(name), Method)


def test_an_unknown_method_is_told_with_the_nearest(refuses: Refuses) -> None:
    with refuses(BrimfulError, names=["'pretrian'", "'pretrain'"]):
        find_method("pretrian")


def test_body_and_head_together_are_the_model(model: PreTrainedModel) -> None:
    ids_BT = torch.arange(24).reshape(2, 12)
    hidden_states = hidden_states_of(model)
    network = Network(model, hidden_states, loss_chunk=8)

    logits_BTV = hidden_states(_micro(ids_BT)) @ network.head_weight_VD.T

    torch.testing.assert_close(logits_BTV, model(ids_BT).logits, rtol=1e-5, atol=1e-6)
    assert network.logit_softcap is None


def test_a_head_that_makes_logits_is_no_layer_before_them() -> None:
    """RWKV calls its output weights `head`, ModernBERT a layer before them."""
    config = RwkvConfig(vocab_size=8, hidden_size=16, num_hidden_layers=2, context_length=4)
    model = RwkvForCausalLM(config)
    hidden_ND = torch.ones(2, 16)

    assert Network(model, hidden_states_of(model), loss_chunk=8).before_head(hidden_ND) is hidden_ND


@pytest.mark.usefixtures("_own_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.parametrize(
    ("architecture", "backend"), [("llama", "inductor"), ("gpt2", "aot_eager")]
)
@pytest.mark.long_but("gpt2-aot_eager")
def test_compiled_blocks_give_the_loss_and_gradient_of_eager_ones_and_evaluation_stays_eager(
    tiny: MakeRecipe, architecture: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second model, what torch captures: its kernels are torch's, and compiling them takes
    fifteen CPU seconds.
    """
    if backend == "aot_eager":
        monkeypatch.setattr(
            "torch._inductor.compile_fx.compile_fx",
            lambda graph, inputs, **_: aot_eager(graph, inputs),
        )
    recipe = tiny(f"model.architecture={architecture}", "sequence_length=80", "model.layers=2")
    model = build(
        recipe, vocabulary=50, end_of_text_id=0, attention=NAME, device=torch.device("cpu")
    )
    ids_BT = torch.randint(0, 50, (2, 80), generator=torch.Generator().manual_seed(0))
    eager = hidden_states_of(model)(_micro(ids_BT))
    eager_grads = torch.autograd.grad(eager.square().sum(), list(model.base_model.parameters()))
    said: list[str] = []
    hidden_states = compiled(
        model, shape=(2, 80), say=said.append, done=lambda: said.append("compiled")
    )
    made = hidden_states(_micro(ids_BT))
    torch.testing.assert_close(made, eager, rtol=1e-4, atol=1e-5)
    for grad, expected in zip(
        torch.autograd.grad(made.square().sum(), list(model.base_model.parameters())),
        eager_grads,
        strict=True,
    ):
        torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(
            hidden_states(_micro(ids_BT[:1, :33])), eager[:1, :33], rtol=1e-4, atol=1e-5
        )
    assert said == ["compiled"]


@pytest.mark.usefixtures("_own_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_a_failing_compiler_is_told_once_and_training_goes_on(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    model = build(
        tiny(), vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )
    ids_BT = torch.zeros(2, 32, dtype=torch.int64)
    expected = hidden_states_of(model)(_micro(ids_BT))

    def no_backend(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", no_backend)
    said: list[str] = []
    hidden_states = compiled(model, shape=(2, 32), say=said.append)
    for _ in range(2):
        torch.testing.assert_close(hidden_states(_micro(ids_BT)), expected)
    assert len(said) == 1
    assert said[0] == snapshot


@pytest.mark.usefixtures("_own_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_a_compiler_that_runs_out_of_memory_has_not_failed(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(
        tiny(), vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )

    def no_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory (for the test)")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", no_memory)
    said: list[str] = []
    hidden_states = compiled(model, shape=(2, 32), say=said.append)
    assert isinstance(
        attempt(lambda: hidden_states(_micro(torch.zeros(2, 32, dtype=torch.int64)))), OutOfMemory
    )
    assert said == []


@pytest.mark.usefixtures("_own_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.long
def test_one_compiled_graph_gives_the_losses_of_chunks_of_any_length() -> None:
    said: list[str] = []
    piece, graphs = compiled_piece_losses(said.append), torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    generator = torch.Generator().manual_seed(0)
    head_VD = torch.randn(50, 16, generator=generator)
    for length in (7, 4, 5):
        hidden_CD = torch.randn(length, 16, generator=generator)
        targets_C = torch.randint(0, 50, (length,), generator=generator)
        targets_C[0] = IGNORED
        losses_C, grad_CV = piece(hidden_CD, head_VD, targets_C, 5.0, wants_grad=True)
        expected_C, expected_CV = piece_losses(hidden_CD, head_VD, targets_C, 5.0, wants_grad=True)
        torch.testing.assert_close(losses_C, expected_C)
        torch.testing.assert_close(grad_CV[1:], expected_CV[1:])
    assert said == []
    assert graphs["unique_graphs"] - before == 1


@pytest.mark.usefixtures("_own_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_losses_outlive_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_backend(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", no_backend)
    said: list[str] = []
    piece = compiled_piece_losses(said.append)
    chunk = (torch.ones(3, 8), torch.ones(9, 8), torch.zeros(3, dtype=torch.int64), None)
    for _ in range(2):
        assert torch.equal(
            piece(*chunk, wants_grad=True)[0], piece_losses(*chunk, wants_grad=True)[0]
        )
    assert [text.partition(":")[0] for text in said] == ["B307"]


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
