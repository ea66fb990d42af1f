"""Changes of a recipe that would make it fit a device, each measured."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce

from brimful.base.types import Json, JsonDict
from brimful.planning.choices import ADAPTED, EIGHT_BIT_VARIANTS, ROUNDED, has_four_bits
from brimful.planning.memory import Footprint
from brimful.planning.step import Recompute
from brimful.planning.survey import Prepared, Tracer
from brimful.planning.trace import Unrecorded
from brimful.recipe import AdapterRecipe
from brimful.recipe.rewards import draws_by_vllm


@dataclass(frozen=True)
class Remedy:
    """A change that takes less memory.

    Attributes:
        name: What to change.
        change: What that does to the recipe or to the run.
        set: The override on the command line; empty where there is none.
        footprint: Memory with one sequence per micro-batch.
        largest: The largest micro-batch that fits then.
        price: Rank by what the change costs in time and results; the lowest costs least.
    """

    name: str
    change: str
    set: str
    footprint: Footprint
    largest: int
    price: int = 0

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "change": self.change,
            "set": self.set,
            "largest_micro_batch": self.largest,
            "footprint": self.footprint.to_json(),
        }


@dataclass(frozen=True)
class _Change:
    """A change of the recipe's values and of the step's, before it is known what it helps; `set` as
    on the command line.
    """

    name: str
    change: str
    set: str
    recipe: Json = field(default_factory=dict)
    step: Json = field(default_factory=dict)

    def and_also(self, other: "_Change") -> "_Change":
        """Return both changes as one."""
        step = {**self.step, **other.step}
        if "optimizer" in self.step and "optimizer" in other.step:
            step["optimizer"] = f"{ROUNDED}_{EIGHT_BIT}"
        return _Change(
            f"{self.name} and {other.name}",
            f"{self.change}; {other.change}",
            f"{self.set} {other.set}",
            {**self.recipe, **other.recipe},
            step,
        )

    def remedy(
        self, prepared: Prepared, tracer: Tracer, recompute: Recompute, price: int
    ) -> Remedy | None:
        """Return what the change would bring; None where no recording of it can be had."""
        changed = prepared.changed(self.recipe) if self.recipe else prepared
        try:
            memory = changed.memory(tracer, **{"recompute": recompute, **self.step})
        except Unrecorded:
            return None
        largest = memory.largest(prepared.recipe.effective_batch)
        return Remedy(self.name, self.change, self.set, memory.at(1), largest, price)


EIGHT_BIT, EIGHT_BIT_DEVICES = EIGHT_BIT_VARIANTS["adamw_8bit"]
FOUR_BITS = _Change(
    "4-bit base",
    "the frozen base in 4 bits: its products are less exact and slower",
    "quantize=nf4",
    {"quantize": "nf4"},
)

_ATTENTION = "q_proj,k_proj,v_proj,o_proj"


def _without_vllm(prepared: Prepared) -> list[_Change]:
    """Return what frees the memory that vLLM holds, in a list that is empty where it holds none."""
    plan = prepared.recipe.plan.model_copy(update={"sampling": "brimful"})
    change = _Change(
        "no vLLM",
        "answers are drawn by brimful's engine, with the weights that are trained",
        "plan.sampling=brimful",
        {"plan": plan},
    )
    return [change] * draws_by_vllm(prepared.recipe)


def _in_four_bits(prepared: Prepared) -> _Change:
    """Return the base in 4 bits, which vLLM does not take."""
    return reduce(_Change.and_also, [*_without_vllm(prepared), FOUR_BITS])


def remedies(prepared: Prepared, tracer: Tracer, *, recomputes: Recompute) -> tuple[Remedy, ...]:
    """Return single changes that take less memory than the recipe as it is, the most helpful
    first; and where none of them makes it fit, the first few that together do.
    """
    as_it_is = prepared.memory(tracer, recompute=recomputes)
    one_bytes = as_it_is.at(1).allocated.value
    most = as_it_is.largest(prepared.recipe.effective_batch)
    helpful: list[tuple[_Change, Remedy]] = []
    for price, change in enumerate(_changes(prepared, recomputes)):
        remedy = change.remedy(prepared, tracer, recomputes, price)
        if remedy is None:
            continue
        if remedy.footprint.allocated.value < one_bytes or remedy.largest > most:
            helpful.append((change, remedy))
    found = [remedy for _, remedy in helpful]
    if not any(remedy.largest for remedy in found):
        parameters = as_it_is.at(1).parameters
        together = (
            change.remedy(prepared, tracer, recomputes, price)
            for price, change in enumerate(_together([change for change, _ in helpful], prepared))
            if least_bytes(prepared.changed(change.recipe), parameters)
            <= prepared.target.usable_bytes
        )
        found += itertools.islice((remedy for remedy in together if remedy and remedy.largest), 1)
    return tuple(sorted(found, key=lambda remedy: (-remedy.largest, remedy.footprint.driver.value)))


def cheapest_remedy(prepared: Prepared, tracer: Tracer, *, recomputes: Recompute) -> Remedy | None:
    """Return the change that costs time and result least of those that make a recipe fit: a single
    one, else the first that do so together. None where there is none.
    """
    changes = list(_changes(prepared, recomputes))
    together: Iterable[_Change] = _together(changes, prepared)
    if prepared.recipe.adapter is not None and not has_four_bits(prepared.device):
        # Other changes of the recipe, such as shorter sequences, would have to be recorded on the
        # spot for Apple GPUs, and a list of devices does not wait for that.
        changes, together = [each for each in changes if not each.recipe], ()
    parameters = prepared.memory(tracer, recompute=recomputes).at(1).parameters
    for price, change in enumerate(itertools.chain(changes, together)):
        if least_bytes(prepared.changed(change.recipe), parameters) > prepared.target.usable_bytes:
            continue
        remedy = change.remedy(prepared, tracer, recomputes, price)
        if remedy and remedy.largest:
            return remedy
    return None


def _together(changes: list[_Change], prepared: Prepared) -> Iterator[_Change]:
    """Return changes at once, the ones that cost least first: any two, and adapters on a base in 4
    bits, which needs them and kernels of the device.
    """
    for one, other in itertools.combinations(changes, 2):
        if not (one.step.keys() & other.step.keys() or one.recipe.keys() & other.recipe.keys()):
            yield one.and_also(other)
    by_name = {change.name: change for change in changes}
    if "adapters" in by_name and has_four_bits(prepared.device):
        on_four_bits = by_name["adapters"].and_also(_in_four_bits(prepared))
        yield on_four_bits
        if "recomputation" in by_name:
            yield by_name["recomputation"].and_also(on_four_bits)


def least_bytes(prepared: Prepared, parameters: int) -> int:
    """Return the memory that a step needs at least, without a trace: its weights alone."""
    spec = prepared.spec(recompute=False)
    if spec.quantize == "nf4":
        return parameters // 2
    return parameters * (4 if spec.weights == "fp32" else 2)


def _changes(prepared: Prepared, recomputes: Recompute) -> list[_Change]:
    """Return the changes that may help, the one that costs time and result least first."""
    recipe = prepared.recipe
    half = recipe.sequence_length // 2
    is_published = isinstance(recipe.model, str)
    changes = _without_vllm(prepared)
    chunk = int(prepared.choices["loss_chunk"].value)
    if chunk > 1024 and not recipe.kind.gives_labels:
        changes.append(
            _Change(
                "smaller pieces of the loss",
                "the loss takes fewer tokens at a time; results stay the same up to rounding",
                "plan.loss_chunk=1024",
                step={"loss_chunk": 1024},
            )
        )
    if recomputes is not True:
        changes.append(
            _Change(
                "recomputation",
                "activations of every block are computed twice; results stay the same up to"
                " rounding",
                "plan.recompute=true",
                step={"recompute": True},
            )
        )
    if recipe.adapter is None:
        changes += _of_the_update(prepared)
    is_in_16_bits = recipe.adapter is not None and recipe.quantize == "none"
    if is_published and is_in_16_bits and has_four_bits(prepared.device):
        changes.append(_in_four_bits(prepared))
    changes += _on_packed_experts(prepared)
    if is_published and recipe.adapter is None and not recipe.kind.gives_labels:
        changes.append(
            _Change(
                "adapters",
                "only low-rank adapters train: another model than full fine-tuning gives",
                "adapter.rank=16",
                {"adapter": AdapterRecipe()},
            )
        )
    if half >= 2 and (recipe.batch.tokens or 0) % half == 0:
        changes.append(
            _Change(
                "half the sequence length",
                "every sequence is cut to half: long examples lose their end, and a step sees half"
                " the tokens",
                f"sequence_length={half}",
                {"sequence_length": half},
            )
        )
    return changes


def _on_packed_experts(prepared: Prepared) -> Iterator[_Change]:
    """Yield what packs experts that adapters reach, where the attention has the usual layers."""
    adapter, experts = prepared.recipe.adapter, prepared.choices.get("experts")
    if adapter is None or experts is None or experts.value != ADAPTED:
        return
    if "kv_lora_rank" in prepared.model.config or not has_four_bits(prepared.device):
        return
    packed = _in_four_bits(prepared)
    yield _Change(
        "4-bit experts",
        "adapters on attention alone, so that experts can be in 4 bits like the rest of the base",
        f"{packed.set} adapter.targets={_ATTENTION}",
        {**packed.recipe, "adapter": adapter.model_copy(update={"targets": _ATTENTION})},
    )


def _of_the_update(prepared: Prepared) -> Iterator[_Change]:
    """Return the changes of how all weights are kept and updated: states in 8 bits, weights in 16,
    and both.
    """
    recipe, variant = prepared.recipe, str(prepared.choices["optimizer"].value)
    is_rounded, found = recipe.optimizer.weights == "bf16", list[_Change]()
    if recipe.optimizer.kind == "adamw" and prepared.device.kind in EIGHT_BIT_DEVICES:
        found.append(
            _Change(
                "8-bit optimizer",
                "optimizer states in 8 bits: another update, close to the same",
                "optimizer.kind=adamw_8bit",
                step={"optimizer": f"{ROUNDED}_{EIGHT_BIT}" if is_rounded else EIGHT_BIT},
            )
        )
    multiplies_bf16 = prepared.precision == "bf16"
    if not is_rounded and multiplies_bf16 and not recipe.feedback_points:
        keeps_fp32_states = recipe.optimizer.kind == "adamw"
        found.append(
            _Change(
                "weights in bf16",
                "weights and gradients in 16 bits: updates are computed in fp32 and rounded at"
                " random, so that small ones count",
                "optimizer.weights=bf16",
                {"optimizer": recipe.optimizer.model_copy(update={"weights": "bf16"})},
                {"optimizer": ROUNDED if keeps_fp32_states else f"{ROUNDED}_{variant}"},
            )
        )
    yield from found
    if len(found) > 1:
        yield found[0].and_also(found[1])
