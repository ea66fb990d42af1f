"""Feedback alignment: gradients are those that its formulas give, none crosses a cut, and a whole
run is one of the product like any other.

Shapes: B rows, T positions, N = B*T positions, D hidden size, V vocabulary.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from brimful.base.errors import BrimfulError
from brimful.data.batches import IGNORED, MicroBatch
from brimful.model import packed_attention
from brimful.model.build import build
from brimful.model.okadfa.modeling import attentions_of
from brimful.recipe import FeedbackRecipe
from brimful.training.activations import recompute_activations
from brimful.training.checkpoint import differences
from brimful.training.loop import accumulate_gradients
from brimful.training.method import (
    Network,
    blocks_of,
    compiled,
    find_method,
    hidden_states_of,
    next_token_loss_sum,
)
from brimful.training.methods import feedback
from brimful.training.methods.feedback import METHOD, Feedback, feedback_matrix, segments_of
from brimful.training.optim import StepGuard, build_optimizer, guarded_update, loss_factor
from brimful.training.precision import Precision

CPU, VOCABULARY = torch.device("cpu"), 50
BLOCK, SUBLAYER, NONE = (FeedbackRecipe(points=points) for points in ("block", "sublayer", "none"))
IDENTITY = FeedbackRecipe(matrix="identity")
Build = Callable[..., PreTrainedModel]
Gradients = dict[str, Tensor | None]
ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def built(tiny: MakeRecipe) -> Build:
    """`built("llama", "key=value", ...)`: the tiny recipe's model of this architecture, in
    training.
    """

    def make(architecture: str, *overrides: str) -> PreTrainedModel:
        recipe = tiny("method=feedback", f"model.architecture={architecture}", *overrides)
        model: PreTrainedModel = build(
            recipe, vocabulary=VOCABULARY, end_of_text_id=0, attention="sdpa", device=CPU
        ).train()
        return model

    return make


@pytest.fixture
def micro() -> MicroBatch:
    """Four rows; the first positions of two of them are not scored."""
    rows_BT = torch.randint(0, VOCABULARY, (4, 25), generator=torch.Generator().manual_seed(0))
    targets_BT = rows_BT[:, 1:].clone()
    targets_BT[:2, :7] = IGNORED
    return MicroBatch(rows_BT[:, :-1].contiguous(), targets_BT)


def _network(model: Any) -> Network:
    return Network(model, hidden_states_of(model), loss_chunk=16)


def _gradients(
    loss_sum: Any, network: Network, micro: MicroBatch, factor: float = 1.0
) -> Gradients:
    """By parameter, of one backward pass with the dropout of one seed."""
    torch.manual_seed(3)
    network.model.zero_grad()
    (loss_sum(network, micro) * factor).backward()
    return {
        name: None if parameter.grad is None else parameter.grad.clone()
        for name, parameter in network.model.named_parameters()
    }


def _assert_same(found: Gradients, expected: Gradients, **tolerance: float) -> None:
    """Bit for bit where no tolerance is given."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, **({"rtol": 0.0, "atol": 0.0} | tolerance), msg=name
        )


class TwoLayers(nn.Module):
    """hidden = tanh(hidden @ W.T + b), twice, between an embedding and a head: small enough for
    pencil and paper.
    """

    config = SimpleNamespace(final_logit_softcapping=None)

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.linear = nn.Linear(width, width)

        def forward(self, hidden_BTD: Tensor) -> Tensor:
            return torch.tanh(self.linear(hidden_BTD))

    def __init__(self, width: int = 6, runs: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = (
            nn.Embedding(VOCABULARY, width),
            nn.Linear(width, VOCABULARY, bias=False),
        )
        self.layers, self.runs = nn.ModuleList(self.Layer(width) for _ in range(2)), runs

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def hidden_states(self, micro: MicroBatch) -> Tensor:
        hidden_BTD: Tensor = self.embedding(micro.inputs_BT)
        for layer in self.runs:
            hidden_BTD = self.layers[layer](hidden_BTD)
        return hidden_BTD


@torch.no_grad()
def _by_hand(model: TwoLayers, micro: MicroBatch, matrix_DD: Tensor) -> Gradients:
    """With e_top = (softmax(logits) - onehot) V at the hidden states before the head and e = e_top
    B at every point: dW = (e * f'(z))^T h, db = sum(e * f'(z)) with f' = 1 - f^2; the row of a
    token in the embedding is the sum of e where it stands.
    """
    ids_N, targets_N = micro.inputs_BT.flatten(), micro.targets_BT.flatten()
    hiddens_ND = [model.embedding.weight[ids_N]]
    for layer in model.layers:
        hiddens_ND.append((hiddens_ND[-1] @ layer.linear.weight.T + layer.linear.bias).tanh())
    logits_NV = hiddens_ND[-1] @ model.head.weight.T
    delta_NV = logits_NV.softmax(-1) - nn.functional.one_hot(targets_N.clamp(min=0), VOCABULARY)
    delta_NV[targets_N == IGNORED] = 0
    fed_back_ND = delta_NV @ model.head.weight @ matrix_DD
    found: Gradients = {"head.weight": delta_NV.T @ hiddens_ND[-1]}
    for number in (0, 1):
        slope_ND = fed_back_ND * (1 - hiddens_ND[number + 1].square())
        found |= {
            f"layers.{number}.linear.weight": slope_ND.T @ hiddens_ND[number],
            f"layers.{number}.linear.bias": slope_ND.sum(0),
        }
    rows_VD = [fed_back_ND[ids_N == token].sum(0) for token in range(VOCABULARY)]
    return found | {"embedding.weight": torch.stack(rows_VD)}


@pytest.mark.parametrize("rules", [BLOCK, IDENTITY], ids=["uniform", "identity"])
def test_gradients_of_a_two_layer_net_are_those_derived_by_hand(
    micro: MicroBatch, rules: FeedbackRecipe
) -> None:
    model = TwoLayers()
    matrix_DD = torch.eye(6) if rules is IDENTITY else feedback_matrix(6, seed=5)

    found = _gradients(
        Feedback(rules, seed=5), Network(model, model.hidden_states, loss_chunk=16), micro
    )  # type: ignore[arg-type]

    expected = _by_hand(model, micro, matrix_DD)
    _assert_same(found, {name: expected[name] for name in found}, rtol=1e-5, atol=1e-6)


def test_through_the_identity_the_last_layer_gets_the_true_gradient_and_the_first_does_not(
    micro: MicroBatch,
) -> None:
    model = TwoLayers()
    network = Network(model, model.hidden_states, loss_chunk=16)  # type: ignore[arg-type]

    found, true = (
        _gradients(Feedback(IDENTITY, 0), network, micro),
        _gradients(next_token_loss_sum, network, micro),
    )

    torch.testing.assert_close(found["layers.1.linear.weight"], true["layers.1.linear.weight"])
    assert not torch.allclose(
        found["layers.0.linear.weight"], true["layers.0.linear.weight"], rtol=0.1
    )


ARCHITECTURES = [
    ("llama", BLOCK, ()),
    ("llama", IDENTITY, ("model.tie_embeddings=true",)),
    ("gpt2", BLOCK, ()),
    ("okadfa", BLOCK, ()),
    ("okadfa", SUBLAYER, ()),
    ("okadfa", SUBLAYER, ("model.attention=softmax",)),
]
NAMES = [
    "llama",
    "llama, tied, identity",
    "gpt2",
    "kernel",
    "kernel, sublayers",
    "softmax, sublayers",
]


@pytest.mark.parametrize(("architecture", "rules", "overrides"), ARCHITECTURES, ids=NAMES)
def test_every_segment_is_backpropagated_within_itself_alone(
    built: Build,
    micro: MicroBatch,
    architecture: str,
    rules: FeedbackRecipe,
    overrides: tuple[str, ...],
) -> None:
    """Each is run again by itself on what it read, and given the error at the top: what follows or
    comes before has no part in it.
    """
    model = built(architecture, *overrides)
    method = Feedback(rules, seed=1)
    found = _gradients(method, _network(model), micro)

    embedding, *segments = segments_of(model, rules.points)
    read: dict[nn.Module, tuple[Any, Any]] = {}
    with torch.no_grad():
        handles = [
            each.register_forward_pre_hook(
                lambda m, args, more: read.update({m: (args, more)}), with_kwargs=True
            )
            for each in segments
        ]
        hidden_BTD = hidden_states_of(model)(micro)
        [handle.remove() for handle in handles]
    network = Network(model, lambda _: hidden_BTD.requires_grad_(), loss_chunk=16)
    error_BTD, head_VD = torch.autograd.grad(
        next_token_loss_sum(network, micro), (hidden_BTD, network.head_weight_VD)
    )
    fed_back_BTD = method.feed_back(error_BTD)

    names = {parameter: name for name, parameter in model.named_parameters()}
    for segment in segments:
        (segment_input_BTD, *rest), more = read[segment]
        segment_input_BTD = segment_input_BTD.clone().requires_grad_()
        out = segment(segment_input_BTD, *rest, **more)
        wanted = [segment_input_BTD, *segment.parameters()]
        input_gradient_BTD, *gradients = torch.autograd.grad(
            out[0] if isinstance(out, tuple) else out, wanted, fed_back_BTD
        )
        _assert_same(
            {names[p]: found[names[p]] for p in wanted[1:]},
            {names[p]: g for p, g in zip(wanted[1:], gradients, strict=True)},
            rtol=1e-4,
            atol=1e-5,
        )
        if (
            segment is segments[0] and architecture == "gpt2"
        ):  # learned positions lie between the embedding and the first block
            torch.testing.assert_close(
                found["transformer.wpe.weight"][: input_gradient_BTD.shape[1]],
                input_gradient_BTD.sum(0),
                rtol=1e-4,
                atol=1e-5,
            )
    rows_VD = torch.zeros_like(embedding.weight).index_add_(
        0, micro.inputs_BT.flatten(), fed_back_BTD.flatten(0, 1)
    )
    is_tied = embedding.weight is network.head_weight_VD
    torch.testing.assert_close(
        found[names[embedding.weight]],
        rows_VD + head_VD if is_tied else rows_VD,
        rtol=1e-4,
        atol=1e-5,
    )
    if not is_tied:
        torch.testing.assert_close(
            found[names[network.head_weight_VD]], head_VD, rtol=1e-4, atol=1e-5
        )


def test_nothing_but_the_fed_back_error_comes_below_the_final_norm(
    built: Build, micro: MicroBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "feedback_matrix", lambda width, seed: torch.zeros(width, width))
    found = _gradients(
        Feedback(BLOCK, 0), _network(built("llama", "model.tie_embeddings=false")), micro
    )

    learning = {name for name, gradient in found.items() if gradient is not None and gradient.any()}
    assert learning == {"model.norm.weight", "lm_head.weight"}


@pytest.mark.parametrize(("architecture", "tied"), [("okadfa", True), ("llama", False)])
def test_without_points_only_the_final_norm_and_the_head_learn_and_they_get_the_true_gradient(
    built: Build, micro: MicroBatch, architecture: str, tied: bool
) -> None:
    network = _network(built(architecture, f"model.tie_embeddings={str(tied).lower()}"))
    found = {
        name: gradient
        for name, gradient in _gradients(Feedback(NONE, 0), network, micro).items()
        if gradient is not None
    }

    true = _gradients(next_token_loss_sum, network, micro)
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    assert found.keys() == {name for name in true if name.startswith("model.norm.")} | {head}
    _assert_same(
        {**found, head: None},
        {**{name: true[name] for name in found}, head: None},
        rtol=1e-4,
        atol=1e-5,
    )
    with torch.no_grad():
        hidden_BTD = network.hidden_states(micro)
    on_top = replace(network, hidden_states=lambda _: hidden_BTD)
    torch.testing.assert_close(
        found[head], _gradients(next_token_loss_sum, on_top, micro)[head], rtol=1e-4, atol=1e-5
    )


def test_the_loss_is_that_of_next_token_prediction_with_and_without_gradients(
    built: Build, micro: MicroBatch
) -> None:
    network = _network(built("okadfa"))
    method = Feedback(SUBLAYER, 0)

    losses = [method(network, micro), next_token_loss_sum(network, micro)]
    with torch.no_grad():
        losses += [method(network, micro)]

    assert len({loss.item() for loss in losses}) == 1


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_model_trained_this_way_is_backpropagated_and_fed_back_by_others_as_one_made_anew(
    built: Build, micro: MicroBatch, recomputed: bool
) -> None:
    """Also while the loss of another pass is still held, of which only the head's gradient was
    asked for.
    """
    used, fresh = (_network(built("okadfa", "model.dropout=0.1")) for _ in range(2))
    if recomputed:
        recompute_activations(used.model)
        recompute_activations(fresh.model)
    _gradients(Feedback(SUBLAYER, 0), used, micro)
    held = Feedback(BLOCK, 0)(used, micro)
    torch.autograd.grad(held, used.model.base_model.norm.weight)

    for loss_sum in (next_token_loss_sum, Feedback(BLOCK, 7), Feedback(SUBLAYER, 8)):
        again = (
            Feedback(loss_sum._rules, loss_sum._seed)
            if isinstance(loss_sum, Feedback)
            else loss_sum
        )
        _assert_same(_gradients(loss_sum, used, micro), _gradients(again, fresh, micro))


@pytest.mark.parametrize(
    ("architecture", "rules"),
    [("okadfa", BLOCK), ("okadfa", SUBLAYER), ("gpt2", BLOCK), ("llama", BLOCK)],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_activations_changes_no_bit(
    built: Build, micro: MicroBatch, architecture: str, rules: FeedbackRecipe, precision: str
) -> None:
    network = _network(
        built(architecture, *(() if architecture == "llama" else ("model.dropout=0.1",)))
    )

    def gradients() -> Gradients:
        torch.manual_seed(3)
        network.model.zero_grad()
        accumulate_gradients(
            network,
            replace(METHOD, loss_sum=Feedback(rules, 0)),
            Precision(precision),
            CPU,
            [micro],
            torch.ones(()),
        )
        return {name: parameter.grad for name, parameter in network.model.named_parameters()}

    kept = gradients()
    recompute_activations(network.model)
    _assert_same(gradients(), kept)


@pytest.mark.long_but("False-llama-rules0", "True-llama-rules0")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.parametrize(
    ("architecture", "rules"), [("llama", BLOCK), ("gpt2", BLOCK), ("okadfa", SUBLAYER)]
)
@pytest.mark.parametrize("recomputed", [False, True])
def test_compiled_blocks_give_the_gradients_of_eager_ones_and_are_compiled_once(
    built: Build, micro: MicroBatch, architecture: str, rules: FeedbackRecipe, recomputed: bool
) -> None:
    """What follows the capture of graphs is tested with backpropagation."""
    eager, network = (
        _network(
            built(architecture, *(("model.attention=softmax",) if architecture == "okadfa" else ()))
        )
        for _ in range(2)
    )
    method, counters = Feedback(rules, 0), torch._dynamo.utils.counters
    if recomputed:
        recompute_activations(network.model)
    torch._dynamo.reset()
    counters.clear()
    for block in blocks_of(network.model):
        block.compile(backend="aot_eager", dynamic=False)

    first = _gradients(method, network, micro)
    frames = counters["frames"]["total"]
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # as in an evaluation
        method(network, micro)
    second = _gradients(method, network, micro)

    _assert_same(first, _gradients(Feedback(rules, 0), eager, micro), rtol=1e-4, atol=1e-5)
    _assert_same(second, first)
    assert counters["frames"]["total"] == frames > 0


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_where_compiling_fails_in_the_middle_of_the_network_its_gradients_are_still_those(
    built: Build, micro: MicroBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_backend(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", no_backend)
    torch._dynamo.reset()
    model, said = built("llama"), list[str]()
    network = Network(model, compiled(model, shape=(4, 24), say=said.append), loss_chunk=16)

    found = _gradients(Feedback(BLOCK, 0), network, micro)

    _assert_same(found, _gradients(Feedback(BLOCK, 0), _network(built("llama")), micro))
    assert len(said) == 1
    torch._dynamo.reset()


def test_a_block_that_is_left_out_or_run_twice_is_refused(
    micro: MicroBatch, refuses: Refuses
) -> None:
    for runs in ((0,), (0, 1, 1)):
        model = TwoLayers(runs=runs)
        with refuses(BrimfulError):
            Feedback(BLOCK, 0)(Network(model, model.hidden_states, loss_chunk=16), micro)  # type: ignore[arg-type]


@pytest.mark.parametrize(("precision", "angle"), [("bf16", 2e-3), ("fp16", 1e-4)])
def test_mixed_precision_feeds_the_error_back_in_its_own_type_and_stays_close_to_fp32(
    built: Build, micro: MicroBatch, precision: str, angle: float
) -> None:
    network, method = _network(built("okadfa")), Feedback(BLOCK, 0)
    exact = _gradients(method, network, micro)
    guard = StepGuard.fresh(Precision(precision), CPU)
    scale = loss_factor(guard.loss_scale, 82)

    network.model.zero_grad()
    accumulate_gradients(
        network, replace(METHOD, loss_sum=method), Precision(precision), CPU, [micro], scale
    )

    for name, parameter in network.model.named_parameters():
        assert parameter.grad.dtype is torch.float32
        assert (
            torch.cosine_similarity(parameter.grad.flatten(), exact[name].flatten(), dim=0)
            > 1 - angle
        ), name
        assert parameter.grad.norm() / scale == pytest.approx(float(exact[name].norm()), rel=0.05)


def test_micro_batches_add_up_to_the_whole_batch_and_clipping_sees_the_sum(
    built: Build, micro: MicroBatch, tiny: MakeRecipe
) -> None:
    def updated(*pieces: MicroBatch) -> tuple[Gradients, Tensor]:
        network, recipe = _network(built("okadfa")), tiny("optimizer.clip_norm=0.01")
        guard = StepGuard.fresh(Precision("fp32"), CPU)
        optimizer = build_optimizer(network.model, recipe.optimizer, variant="foreach")
        loss = accumulate_gradients(
            network,
            replace(METHOD, loss_sum=Feedback(SUBLAYER, 0)),
            Precision("fp32"),
            CPU,
            pieces,
            torch.tensor(1 / 64),
        )
        norm = guarded_update(
            optimizer,
            guard,
            Precision("fp32"),
            loss=loss,
            clip_norm=0.01,
            carried=torch.tensor(82 / 64),
        )
        return {name: parameter.grad for name, parameter in network.model.named_parameters()}, norm

    pieces = zip(micro.inputs_BT.split((3, 1)), micro.targets_BT.split((3, 1)), strict=True)
    (whole, norm), (split, split_norm) = (
        updated(micro),
        updated(*(MicroBatch(*piece) for piece in pieces)),
    )

    assert norm > 0.01
    torch.testing.assert_close(split_norm, norm, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(
        torch.nn.utils.get_total_norm(list(whole.values())), torch.tensor(0.01), rtol=1e-5, atol=0.0
    )
    _assert_same(split, whole, rtol=1e-4, atol=1e-8)


def test_packed_examples_learn_what_they_learn_one_at_a_time() -> None:
    packed_attention.register()
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    network = _network(
        AutoModelForCausalLM.from_config(
            config, attn_implementation=packed_attention.NAME, dtype=torch.float32
        )
    )
    ids_T, lengths = (
        torch.randint(0, VOCABULARY, (60,), generator=torch.Generator().manual_seed(1)),
        (17, 3, 40),
    )
    targets_T = ids_T.roll(-1).masked_fill(torch.arange(60) % 3 == 0, IGNORED)
    scored_N = (targets_T != IGNORED).nonzero()[:, 0]
    method = Feedback(BLOCK, 0)

    together = _gradients(
        method, network, MicroBatch(ids_T[None], targets_T[None], scored_N, torch.tensor(lengths))
    )

    alone = [
        _gradients(method, network, MicroBatch(*parts))
        for parts in zip(
            ids_T[None].split(lengths, 1), targets_T[None].split(lengths, 1), strict=True
        )
    ]
    _assert_same(
        together,
        {name: sum(each[name] for each in alone) for name in together},
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def test_the_activations_of_a_segment_are_freed_before_the_next_gets_the_error(
    built: Build, micro: MicroBatch, device: str
) -> None:
    """When the error reaches one, nothing that those above it kept for their backward pass is there
    any more.
    """
    model, kept, seen = (
        built("okadfa"),
        list[tuple[int, weakref.ref[Any]]](),
        list[tuple[int, dict[int, int]]](),
    )
    where = [-1]

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()  # else an output would hold the very node that keeps it
            kept.append((where[0], weakref.ref(self)))

    def alive() -> dict[int, int]:
        return {
            number: sum(holder() is not None for place, holder in kept if place == number)
            for number in range(4)
        }

    for number, segment in enumerate(segments_of(model, "sublayer")[1:]):
        segment.register_forward_pre_hook(lambda *_, number=number: where.__setitem__(0, number))
        segment.register_forward_hook(lambda *_: where.__setitem__(0, -1))
        segment.register_forward_hook(
            lambda _, __, output, number=number: [
                output.register_hook(lambda _: seen.append((number, alive()))),
                None,
            ][1]
        )
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda each: each.tensor):
        loss = Feedback(SUBLAYER, 0)(_network(model.to(device)), micro.to(torch.device(device)))
        before = alive()
        loss.backward()

    assert min(before.values()) > 0
    assert [number for number, _ in seen] == [3, 2, 1, 0]
    for number, left in seen:
        assert left == {other: before[other] if other <= number else 0 for other in range(4)}


def test_the_token_that_orders_the_points_is_on_the_device_of_what_they_get() -> None:
    """autograd has a queue for each device: points in the CPU's would not wait for segments in
    another.
    """
    relay = feedback._Relay(lambda error, products: error)
    for _ in range(2):
        relay.add_point(torch.zeros(2, 3, 4, device="meta", requires_grad=True))
        assert relay.token is not None
        assert relay.token.device.type == "meta"


def test_nothing_of_a_pass_is_left_when_its_loss_is_gone(built: Build, micro: MicroBatch) -> None:
    """Without the garbage collector's help: errors of all micro-batches would fill the memory in
    between.
    """
    network, method, relays = _network(built("llama")), Feedback(BLOCK, 0), list[weakref.ref[Any]]()

    def hidden_states(micro: MicroBatch) -> Tensor:
        relays.append(weakref.ref(method._relay))
        return network.hidden_states(micro)

    gc.collect()
    gc.disable()
    try:
        for go_backward in (True, False):
            loss = method(replace(network, hidden_states=hidden_states), micro)
            if go_backward:
                loss.backward()
            del loss
        assert [relay() for relay in relays] == [None, None]
    finally:
        gc.enable()


def test_a_pass_that_fails_leaves_no_cut_behind(built: Build, micro: MicroBatch) -> None:
    network, method = _network(built("llama")), Feedback(BLOCK, 0)

    def fails(micro: MicroBatch) -> Tensor:
        network.hidden_states(micro)
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        method(replace(network, hidden_states=fails), micro)
    _assert_same(
        _gradients(next_token_loss_sum, network, micro),
        _gradients(next_token_loss_sum, _network(built("llama")), micro),
    )


@pytest.mark.parametrize("width", [1, 64])
def test_the_matrix_depends_on_width_and_seed_alone_and_shares_no_random_numbers_with_the_weights(
    width: int,
) -> None:
    matrix_DD = feedback_matrix(width, seed=3)
    torch.manual_seed(3)
    of_the_weights_DD = (2 * torch.rand(width, width) - 1) / width**0.5

    assert torch.equal(matrix_DD, feedback_matrix(width, seed=3))
    assert not torch.equal(matrix_DD, feedback_matrix(width, seed=4))
    assert not torch.equal(matrix_DD, of_the_weights_DD)
    assert matrix_DD.abs().max() <= width**-0.5
    if width > 1:
        assert float(matrix_DD.std()) == pytest.approx((3 * width) ** -0.5, rel=0.05)
        assert (
            abs(
                float(
                    torch.corrcoef(torch.stack([matrix_DD.flatten(), of_the_weights_DD.flatten()]))[
                        0, 1
                    ]
                )
            )
            < 0.05
        )


def test_the_file_is_the_method_and_it_wants_its_recipe(
    tiny: MakeRecipe, built: Build, micro: MicroBatch, refuses: Refuses
) -> None:
    network = _network(built("llama"))
    assert find_method("feedback") is METHOD
    with refuses(BrimfulError):
        METHOD.loss_sum(network, micro)

    recipe = tiny("method=feedback", "feedback.matrix=identity", "seed=9")
    configured = find_method("feedback").with_options(recipe.loss_options)

    _assert_same(
        _gradients(configured.loss_sum, network, micro),
        _gradients(Feedback(IDENTITY, 9), _network(built("llama")), micro),
    )


RUN = (
    "method=feedback",
    "model={architecture: okadfa, layers: 2, heads: 2, width: 32, dropout: 0.1, redraw: 2}",
    "feedback.points=sublayer",
    "orthogonality={weight: 1e-3, warmup: 8}",
    "plan.micro_batch=3",
    "plan.recompute=true",
)


def test_an_interrupted_run_ends_bit_for_bit_like_an_undisturbed_one(
    interrupted_and_undisturbed: Callable[..., tuple[Any, Any]],
) -> None:
    """Stopped between two draws of the features, while the penalty still grows."""
    interrupted, undisturbed = interrupted_and_undisturbed(*RUN)

    assert differences(interrupted.last, undisturbed.last) == []
    assert interrupted.losses == undisturbed.losses
    losses = undisturbed.losses
    assert losses[-1] < losses[0] - 0.3
    attention = attentions_of(AutoModelForCausalLM.from_pretrained(undisturbed.folder / "model"))[1]
    assert torch.equal(
        undisturbed.last.tensors["model"]["model.layers.1.attention_part.attention.projection_HMD"],
        attention.directions(11 // 2),
    )
