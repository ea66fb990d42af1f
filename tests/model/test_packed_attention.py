"""Examples end to end in one row learn exactly what they learn one at a time."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from fixture_types import Refuses
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.example_batches import ExampleBatch, _Pair
from brimful.model import packed_attention
from brimful.model.attention import BLOCK_ROWS
from brimful.model.description import PACKABLE
from brimful.model.packed_attention import NAME
from brimful.model.registered import register
from brimful.training.activations import recompute_activations
from brimful.training.method import Network, compiled, hidden_states_of, next_token_loss_sum

LENGTHS = (3, BLOCK_ROWS + 16, 1, 2 * BLOCK_ROWS + 2, 17)
VALUES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
OWN_VALUES: dict[str, dict[str, object]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 60},
    "gemma2": {"sliding_window": 20, "query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": 20},
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 32, "dropout": 0.0},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 60},
}


class LoggedCalls(TorchDispatchMode):
    """Notes every operator with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls.append((str(func), args))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _known() -> None:
    register()


def _model(kind: str, attention: str = NAME, **values: object) -> PreTrainedModel:
    """A tiny network with the weights of one seed, large enough that attention decides something;
    dropout off.
    """
    config = AutoConfig.for_model(
        kind,
        **(
            OWN_VALUES[kind]
            if "n_embd" in OWN_VALUES.get(kind, {})
            else VALUES | OWN_VALUES.get(kind, {})
        )
        | values,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def _examples(lengths: Sequence[int] = LENGTHS) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of each, the first third of them not scored."""
    generator = torch.Generator().manual_seed(1)
    examples = []
    for length in lengths:
        ids_T = torch.randint(1, 60, (length + 1,), generator=generator)
        examples.append(
            (ids_T[:-1], ids_T[1:].masked_fill(torch.arange(length) < length // 3, IGNORED))
        )
    return examples


def _packed(examples: list[tuple[Tensor, Tensor]]) -> MicroBatch:
    inputs_BT, targets_BT = (torch.cat(parts)[None] for parts in zip(*examples, strict=True))
    scored_N = (targets_BT.flatten() != IGNORED).nonzero()[:, 0]
    return MicroBatch(
        inputs_BT, targets_BT, scored_N, torch.tensor([len(inputs_T) for inputs_T, _ in examples])
    )


def _padded(examples: list[tuple[Tensor, Tensor]]) -> MicroBatch:
    inputs_BT, targets_BT = (
        torch.nn.utils.rnn.pad_sequence(
            [example[part] for example in examples], batch_first=True, padding_value=padding
        )
        for part, padding in ((0, 0), (1, IGNORED))
    )
    return MicroBatch(inputs_BT, targets_BT)


def _loss_and_gradients(
    model: PreTrainedModel, micros: list[MicroBatch]
) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    network = Network(model, hidden_states_of(model), loss_chunk=50)
    loss = sum((next_token_loss_sum(network, micro) for micro in micros), start=torch.zeros(()))
    loss.backward()
    return loss.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _assert_equal(
    made: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]]
) -> None:
    torch.testing.assert_close(made[0], expected[0], rtol=1e-5, atol=0)
    assert made[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            made[1][name], gradient, rtol=1e-5, atol=1e-5 * gradient.abs().max().item()
        )


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("llama", "sdpa"), ("gpt2", "sdpa"), ("gemma2", "eager"), ("mistral", "sdpa")],
)
def test_packed_padded_and_one_by_one_give_the_same_loss_and_gradients(
    kind: str, reference: str
) -> None:
    examples = _examples()
    one_by_one = _loss_and_gradients(
        _model(kind, reference), [_padded([example]) for example in examples]
    )

    _assert_equal(_loss_and_gradients(_model(kind), [_packed(examples)]), one_by_one)
    _assert_equal(_loss_and_gradients(_model(kind), [_padded(examples)]), one_by_one)
    _assert_equal(_loss_and_gradients(_model(kind, reference), [_padded(examples)]), one_by_one)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "mistral"])
def test_examples_that_begin_alike_give_the_same_when_that_is_computed_once(kind: str) -> None:
    """Whether a window holds what they begin with or not."""
    question_T = torch.randint(1, 60, (24,), generator=torch.Generator().manual_seed(2))
    examples = []
    for inputs_T, targets_T in _examples((30, 26, 90)):
        inputs_T[:24] = question_T
        targets_T[:23] = IGNORED
        targets_T[23:] = 7
        examples.append((inputs_T, targets_T))
    pairs = [_Pair(inputs_T.numpy(), targets_T.numpy()) for inputs_T, targets_T in examples]
    (shared,) = ExampleBatch(tuple(pairs), 256, "shared").micro_batches((1,))
    assert shared.inputs_BT.shape == (1, 23 + 7 + 3 + 67)
    model = _model(kind)

    expected = _loss_and_gradients(model, [_packed([each]) for each in examples])

    _assert_equal(_loss_and_gradients(model, [shared]), expected)


@pytest.mark.parametrize("kind", sorted(PACKABLE))
def test_every_kind_of_model_named_as_packable_is(kind: str) -> None:
    model, examples = _model(kind), _examples((5, 1, 9))
    hidden_states = hidden_states_of(model)

    with torch.no_grad():
        packed_BTD = hidden_states(_packed(examples))
        expected = torch.cat([hidden_states(_padded([example])) for example in examples], dim=1)

    torch.testing.assert_close(packed_BTD, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 4])
def test_the_flash_kernel_gets_all_examples_in_one_call(window: int | None) -> None:
    heads = [
        torch.zeros(1, count, 9, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for count in (4, 2, 2)
    ]
    kernel = packed_attention._Kernel(None, window, None, 0.5, 0.0)
    with LoggedCalls() as logged:
        attended_BTHD = kernel.by_lengths(*heads, [5, 1, 3])

    attended_BTHD.sum().backward()
    assert attended_BTHD.shape == (1, 9, 4, 8)
    assert [each.grad.shape == each.shape for each in heads] == [True] * 3
    calls = [args for name, args in logged.calls if "attention" in name]
    assert len(calls) == 1
    assert calls[0][5:7] == (5, 5)
    starts_E = packed_attention._starts((5, 1, 3), torch.device("cpu"))
    assert starts_E.tolist() == [0, 5, 6, 9]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_one_call_gives_the_loss_and_gradients_of_one_at_a_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro, device = _packed(_examples()), torch.device("cuda")
    found = []
    for by_lengths in (True, False):
        if not by_lengths:
            monkeypatch.setattr(packed_attention, "_has_flash_kernel", lambda *_: False)
        model = _model(kind).to(device, torch.bfloat16)
        found.append(_loss_and_gradients(model, [micro.to(device)]))

    (loss, gradients), (expected_loss, expected) = found
    torch.testing.assert_close(loss, expected_loss, rtol=1e-2, atol=0)
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= 2e-2 * gradient.norm(), name


def test_empty_examples_change_nothing() -> None:
    model, micro = _model("llama"), _packed(_examples())
    assert micro.lengths_E is not None
    with_empty = MicroBatch(
        micro.inputs_BT,
        micro.targets_BT,
        micro.scored_N,
        torch.nn.functional.pad(micro.lengths_E, (0, 7)),
    )

    assert torch.equal(hidden_states_of(model)(micro), hidden_states_of(model)(with_empty))


def test_recomputation_gives_the_same_gradients() -> None:
    examples = _examples()
    kept = _loss_and_gradients(_model("llama"), [_packed(examples)])
    model = _model("llama").train()
    recompute_activations(model)

    _assert_equal(_loss_and_gradients(model, [_packed(examples)]), kept)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_bf16_stays_within_its_rounding(kind: str) -> None:
    model, micro = _model(kind), _packed(_examples())

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = hidden_states_of(model)(micro).float()
    exact = hidden_states_of(model)(micro)

    assert (rounded - exact).norm() / exact.norm() < 0.05


def test_dropout_acts_while_training_only() -> None:
    model, micro = _model("llama", attention_dropout=0.5), _packed(_examples())
    hidden_states = hidden_states_of(model)

    still = hidden_states(micro)
    assert torch.equal(hidden_states(micro), still)
    model.train()
    assert not torch.allclose(hidden_states(micro), still)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral"])
def test_rows_with_padding_on_the_left_and_a_cache_are_attended_as_elsewhere(kind: str) -> None:
    ids_BT = torch.randint(1, 60, (2, 30), generator=torch.Generator().manual_seed(2))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :9] = 0
    texts = [
        _model(kind, attention).generate(
            ids_BT, attention_mask=mask_BT, max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        for attention in (NAME, "eager")
    ]

    assert torch.equal(*texts)


def test_a_model_with_sinks_is_refused_rather_than_wrong(refuses: Refuses) -> None:
    heads = torch.zeros(1, 2, 3, 4)

    with refuses(ValueError):
        packed_attention._attend(torch.nn.Module(), heads, heads, heads, None, s_aux=torch.zeros(2))


def test_a_step_can_be_traced_without_data() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _model("llama")
        hidden_BTD = hidden_states_of(model)(
            MicroBatch(torch.zeros(1, 90, dtype=torch.int64), torch.zeros(1, 90, dtype=torch.int64))
        )
        hidden_BTD.sum().backward()

    assert hidden_BTD.shape == (1, 90, 32)


@pytest.fixture
def _compiling_once() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


@pytest.mark.usefixtures("_compiling_once")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.long
def test_packed_rows_are_compiled_once_however_long_they_are_and_however_many_examples_they_hold() -> (
    None
):
    model, said = _model("llama"), list[str]()
    rows = [
        _packed(_examples(lengths))
        for lengths in ((40, 50, 6), (96,), (1, 2, 3, 60, 30), (70, 91, 2))
    ]
    expected = _loss_and_gradients(model, rows)
    body: Callable[[MicroBatch], Tensor] = compiled(model, shape=(1, 96), say=said.append)
    model.zero_grad()

    loss = sum(
        (next_token_loss_sum(Network(model, body, loss_chunk=50), micro) for micro in rows),
        start=torch.zeros(()),
    )
    loss.backward()

    assert said == []
    _assert_equal(
        (
            loss.detach(),
            {
                name: parameter.grad
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            },
        ),
        expected,
    )
