"""How a session looks at its own steps: now and then one is computed twice, to find a machine that
computes wrongly; and its first update shows which of the weights that should be trained move, and
which positions depend on which.

The latter are looked at in the model as it is trained: attention, adapters, patches and optimizer.
A position that depends on another has a gradient with respect to its embedding; one that does not
has exactly none, whatever kernels round, so nothing is compared within a tolerance. Every session
looks at that, because another machine or version computes by other kernels. What moves is looked at
once: the learning rate of a later session may be zero.

Shapes: B rows, T positions, D hidden size.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.base.errors import PlanError
from brimful.base.warning_codes import coded
from brimful.data.batches import MicroBatch
from brimful.runs.records import ROUTINE
from brimful.training.method import blocks_of, hidden_states_of
from brimful.training.state import Progress

if TYPE_CHECKING:
    from brimful.training.loop import Parts
from collections.abc import Callable

from brimful.base.errors import TrainingStopped
from brimful.training.memory_errors import random_states, rewind
from brimful.training.tensorfile import Tensors

SHOWN = 3
"""Names of gradients in a message."""


class ReplayCheck:
    """Computes the gradients of every so many steps again, from the same numbers, and compares them
    bit for bit.

    Args:
        every: Steps between two checks; None: no step is checked.
        device: Its generators are set back before a repetition.
        say: Told once if the device's kernels give other bits each time, so that nothing can be
            found out.
    """

    def __init__(self, every: int | None, device: torch.device, say: Callable[[str], None]) -> None:
        self._every, self._device, self._say = every, device, say
        self._last_sound: int | None = None

    def compute(self, step: int, parameters: Tensors, gradients: Callable[[], Tensor]) -> Tensor:
        """Compute the gradients of a step, again if a check is due; return the loss.

        Args:
            step: Updates done.
            parameters: Parameters whose gradients are compared, by name.
            gradients: Computes them from nothing and returns the loss.

        Raises:
            TrainingStopped: two of three computations agree and one does not.
        """
        if self._every is None or step == 0 or step % self._every:
            return gradients()
        states, prints = random_states(self._device), []
        for _ in range(2):
            rewind(states, self._device)
            loss = gradients()
            prints.append(_fingerprint(loss, parameters))
        if torch.equal(*prints):
            self._last_sound = step + 1
            return loss
        differing = [
            name
            for name, same in zip(_names(parameters), prints[0] == prints[1], strict=True)
            if not same
        ]
        rewind(states, self._device)
        loss = gradients()
        third = _fingerprint(loss, parameters)
        if any(torch.equal(third, each) for each in prints):
            raise self._fault(step + 1, differing)
        self._every = None
        self._say(
            coded(
                "B306",
                f"step {step + 1}, computed three times, gave other bits each time: kernels of this"
                " device add in no fixed order, so run.replay_check finds nothing here and is off",
            )
        )
        return loss

    def _fault(self, step: int, differing: list[str]) -> TrainingStopped:
        named = ", ".join(differing[:SHOWN]) + " ..." * (len(differing) > SHOWN)
        sound = "no step of this session was checked before"
        if self._last_sound is not None:
            sound = f"the last step that was computed twice alike is {self._last_sound}"
        return TrainingStopped(
            f"step {step}, computed three times from the same numbers, once gave other bits"
            f" ({named}): this machine computes wrongly. The step was not taken;"
            f" {sound}, and checkpoints written since may hold wrong numbers: remove those that you"
            " do not trust from checkpoints/. Test processor and memory, and continue on another"
            " machine with the same command."
        )


def _names(parameters: Tensors) -> list[str]:
    with_gradient = [name for name, each in parameters.items() if each.grad is not None]
    return ["the loss", *with_gradient]


def _fingerprint(loss: Tensor, parameters: Tensors) -> Tensor:
    """Return a sum of the bits of the loss and of each gradient, as integers: any change of a
    single value changes it, and the order of summing does not.
    """
    tensors = [loss, *(each.grad for each in parameters.values() if each.grad is not None)]
    return torch.stack([_as_integers(each).sum(dtype=torch.int64) for each in tensors])


def _as_integers(tensor: Tensor) -> Tensor:
    return tensor.detach().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


EXAMPLES, LENGTH, BLOCKS = 3, 24, 4
"""Examples, or rows, that are looked at, the one in the middle with a neighbour on either side;
their positions; and the blocks that they pass, or more, until one of every kind was among them. A
pass there and back takes a tenth of a second.
"""
NEAR = 8
"""A position sees at least so many before it, its own among them. Windows are longer, and states
that are handed on have not faded yet.
"""
SAMPLE = 1 << 12
"""Weights of a parameter that are kept to see whether they move: those behind the first, or else
behind the largest number of its gradient.
"""

_ADAPTER = re.compile(r"\.lora_\w+(\.\w+)*$")
_NUMBER = re.compile(r"\.\d+\.")

Samples = Mapping[str, tuple[int, Tensor]]
"""By parameter: where some of its weights begin, in its flat order, and those weights."""


@dataclass(eq=False)
class Certificate:
    """Looks at the first update of a session.

    Attributes:
        is_new: The run begins with this session, so it is told what moves.
        is_pending: No update was looked at yet.
    """

    is_new: bool = True
    is_pending: bool = True

    @contextmanager
    def around(
        self, parts: "Parts", progress: Progress, micros: Iterator[MicroBatch]
    ) -> Iterator[None]:
        """Look before and after the update that is made meanwhile, until one was made.

        Args:
            micros: The micro-batches of the step, of which the first is looked at.

        Raises:
            PlanError: as `who_sees_whom` and `what_moved`.
        """
        if not self.is_pending:
            yield
            return
        named, skipped = parts.named_parameters, progress.guard.skipped.item()
        with parts.precision.autocast(parts.device):
            seen = who_sees_whom(parts.network.model, next(micros).to(parts.device))
        samples = samples_of(named)
        yield
        # Answers that all got the same reward give no gradient.
        teaches_nothing = not samples and parts.recipe.rewards is not None
        self.is_pending = teaches_nothing or progress.guard.skipped.item() != skipped
        if self.is_new and not self.is_pending:
            for note in what_moved(named, samples):
                parts.meter.note_event(progress, f"{note}; {seen}" if seen else note)
                seen = ""


NO_CERTIFICATE = Certificate(is_pending=False)


def samples_of(named: Mapping[str, nn.Parameter]) -> Samples:
    """Return some weights of each parameter that has a gradient, and where they begin. Waits for
    the device.
    """
    samples = {}
    for name, each in named.items():
        if each.grad is None:
            continue
        if _is_part(each):  # another rank may have what moves
            samples[name] = (0, torch.empty(0))
            continue
        flat = each.grad.reshape(-1)
        begin = 0 if bool(flat[:SAMPLE].any()) else int(flat.abs().argmax())
        if bool(flat[begin : begin + SAMPLE].any()):
            samples[name] = (begin, each.detach().reshape(-1)[begin : begin + SAMPLE].clone())
    return samples


def what_moved(named: Mapping[str, nn.Parameter], samples: Samples) -> Iterator[str]:
    """Yield notes on what an update moved. A layer's adapters count as one: a fresh one has a
    factor without a gradient.

    Args:
        samples: `samples_of` the same parameters before it.

    Raises:
        PlanError: nothing moved.
    """
    trained = [name for name, each in named.items() if each.requires_grad]
    if not any(map(_is_part, named.values())):
        moved = {
            _layer(name)
            for name, (begin, before) in samples.items()
            if not torch.equal(named[name].detach().reshape(-1)[begin : begin + SAMPLE], before)
        }
        if not moved:
            raise PlanError(
                f"the first update left all {len(trained):,} tensors that should be trained as"
                " they were. Nothing was trained."
            )
        layers = {_layer(name) for name in trained}
        what = "tensors" if len(layers) == len(trained) else "adapters"
        yield f"{ROUTINE}the first update moved {len(moved):,} of {len(layers):,} {what}"
    learning = {_layer(name) for name in samples}
    still = [name for name in trained if _layer(name) not in learning]
    if still:
        kinds = list(dict.fromkeys(_NUMBER.sub(".N.", name) for name in still))
        yield coded(
            "B330",
            f"{len(still):,} of {len(trained):,} tensors that should be trained got no gradient in"
            f" the first step: {', '.join(kinds[:4])}" + ", ..." * (len(kinds) > 4),
        )


def _layer(name: str) -> str:
    return _ADAPTER.sub("", name)


def _is_part(parameter: nn.Parameter) -> bool:
    """Return whether other ranks hold parts of a parameter."""
    return hasattr(parameter, "to_local")


def who_sees_whom(model: PreTrainedModel, micro: MicroBatch) -> str:
    """Return who sees whom in the first positions of a micro-batch, as a clause; empty where that
    cannot be seen: weights in parts, and models that begin without an embedding or lay out their
    states in another way.

    Raises:
        PlanError: a position sees another that it should not see, or not those near to it.
    """
    if any(map(_is_part, model.parameters())):
        return ""
    probe = _cut(micro)
    leaves: list[Tensor] = []

    def as_leaf(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    def stop(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        if states.ndim == 3 and states.shape[:2] == probe.inputs_BT.shape:
            raise _Passed(states)

    blocks = blocks_of(model)
    names = getattr(model.config, "layer_types", None) or []
    kinds = [(type(block), names[at : at + 1]) for at, block in enumerate(blocks)]
    last = min(max(BLOCKS - 1, *map(kinds.index, kinds)), len(kinds) - 1)
    hooks = [
        model.get_input_embeddings().register_forward_hook(as_leaf),
        blocks[last].register_forward_hook(stop),
    ]
    training = [each for each in model.modules() if each.training]
    model.eval()
    try:
        states_BTD = _plain(model, probe)
    except _Passed as passed:
        states_BTD = passed.args[0]
    finally:
        for hook in hooks:
            hook.remove()
        for each in training:
            each.training = True
    shapes = {each.shape[:2] for each in (probe.inputs_BT, states_BTD, *leaves)}
    if len(shapes) > 1 or not leaves:
        return ""
    return _looked_at(states_BTD, leaves[0], probe, model.can_generate())


class _Passed(Exception):
    """Ends a pass behind the last block that is looked at; its argument are the states there."""


def _cut(micro: MicroBatch) -> MicroBatch:
    """Return the first positions of the first examples, or rows."""
    if micro.lengths_E is None:
        mask_BT = None if micro.mask_BT is None else micro.mask_BT[:EXAMPLES, :LENGTH]
        return replace(micro, inputs_BT=micro.inputs_BT[:EXAMPLES, :LENGTH], mask_BT=mask_BT)
    rows = micro.inputs_BT.split(micro.lengths_E.tolist(), 1)[:EXAMPLES]
    pieces = [row[:, :LENGTH] for row in rows]
    return replace(
        micro,
        inputs_BT=torch.cat(pieces, 1),
        lengths_E=torch.tensor([piece.shape[1] for piece in pieces]),
        after_E=None if micro.after_E is None else micro.after_E[:EXAMPLES],
    )


def _plain(model: PreTrainedModel, probe: MicroBatch) -> Tensor:
    if blocks_of(model)[0]._compiled_call_impl is None:
        return hidden_states_of(model)(probe)
    with torch.compiler.set_stance("force_eager"):
        return hidden_states_of(model)(probe)


def _looked_at(states_BTD: Tensor, leaf_BTD: Tensor, probe: MicroBatch, is_causal: bool) -> str:
    """Return whom the example in the middle sees, as a clause.

    Raises:
        PlanError: as in `who_sees_whom`.
    """
    owner_N, place_N = _owners(probe).flatten(), torch.arange(probe.inputs_BT.numel())
    count = int(owner_N.max()) + 1
    number = count // 2
    own = place_N[owner_N == number]
    middle = int(own[len(own) // 2])
    # The first position, too, of which a state that is carried on would not have faded.
    asked_KD = states_BTD.flatten(0, 1)[[int(own[0]), middle]].float()
    score = (asked_KD @ torch.arange(asked_KD.shape[1], device=asked_KD.device).cos()).sum()
    # As in training: backward passes that are written out expect the types of their forward pass.
    with torch.autocast(leaf_BTD.device.type, enabled=False):
        (gradient_BTD,) = torch.autograd.grad(score, leaf_BTD, allow_unused=True)
    if gradient_BTD is None:
        return "who sees whom cannot be told behind a state that is detached"
    sees_N = gradient_BTD.flatten(0, 1).ne(0).any(-1).cpu()
    may_see_N = owner_N == number
    if probe.after_E is not None and probe.after_E[number] >= 0:
        may_see_N |= owner_N == probe.after_E[number]
    problem = ""
    if bool((sees_N & ~may_see_N).any()):
        problem = "tokens of one example are seen by another, or padding is"
    elif is_causal and bool(sees_N[middle + 1 :].any()):
        problem = "a position sees tokens that follow it"
    elif not bool(
        sees_N[(owner_N == number) & ((middle - NEAR < place_N) & (place_N <= middle))].all()
    ):
        problem = "a position does not see those before it in its own example"
    if problem:
        raise PlanError(
            f"{problem}: attention of this model is not what its training needs, and nothing was"
            " trained." + " Pad rows instead: plan.packing=padded." * (probe.lengths_E is not None)
        )
    what = "rows" if probe.lengths_E is None else "examples in one row"
    return f"of {count} {what} none sees another" + " or what follows" * is_causal


def _owners(probe: MicroBatch) -> Tensor:
    """Return the number of the example or row of each position, -1 for padding: int64 (B, T)."""
    if probe.lengths_E is not None:
        return torch.arange(len(probe.lengths_E)).repeat_interleave(probe.lengths_E)[None]
    owner_BT = torch.arange(len(probe.inputs_BT))[:, None].expand(probe.inputs_BT.shape)
    return owner_BT if probe.mask_BT is None else owner_BT.where(probe.mask_BT.cpu() > 0, -1)
