"""What a run that is rewarded for its own answers takes beside its updates: rounds of drawing,
verifying and scoring, and the answers to held-out questions. No torch.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from brimful.base.types import Numbers
from brimful.base.units import format_bytes
from brimful.planning.drawing import BF16, FP32, DrawingMemory
from brimful.planning.host_heap import HOST_SLACK
from brimful.planning.memory import scored_bytes
from brimful.planning.plan import Plan, Prediction, Predictions, verdict_on
from brimful.planning.target import GROWTH_WITH_KERNELS_BYTES
from brimful.planning.trace import Trace
from brimful.planning.vllm_share import VLLM, held_by_vllm, vllm_share
from brimful.planning.writing import (
    ANSWER_SHARE,
    PASSES_OF_TRAINING,
    Texts,
    TextsWritten,
    TextWriter,
    verdicts_time,
    writer_of,
)
from brimful.recipe import Recipe
from brimful.recipe.kinds import shares_beginnings
from brimful.recipe.rewards import (
    CountedRewards,
    RewardsRecipe,
    answers_of_round,
    compared_rounds,
    draws_by_vllm,
    learned_share,
    rewards_of,
)

ALL = (1.0, 1.0, 1.0)
"""Where every answer is learned from."""
_OF_POSITIONS = ("activations", "inputs", "temporaries")
"""Terms of memory that grow with the positions of a pass; logits are made in pieces."""
_STAY = ("weights", "adapters", "optimizer states", VLLM)
"""Terms of memory that are there between the updates, too."""
_VLLM_SPREAD = 3.0
"""vLLM may draw answers faster or slower than brimful's engine by this factor (assumption)."""


@dataclass(frozen=True)
class AnswerRounds:
    """The rounds of a run.

    Attributes:
        recipe: Recipe, as planning counts.
        plan: Plan, with step_time_s among its predictions.
        usable_bytes: Memory of the device.
    """

    recipe: Recipe
    plan: Plan
    usable_bytes: int

    @property
    def rules(self) -> RewardsRecipe:
        """How answers are drawn, resolved."""
        return rewards_of(self.recipe)

    @property
    def answers(self) -> int:
        """Number of answers of a round."""
        return answers_of_round(self.recipe)

    @property
    def asked(self) -> Texts:
        """The answers of a round."""
        group = self.rules.samples_per_prompt
        what = f"{self.answers // group:,} questions x {group}"
        verdict = "program" if self.rules.runs_programs else "number"
        return Texts(what, self.answers, self.rules.max_new_tokens, verdict, at_once=True)

    def count(self, steps: int) -> int:
        """Return how many rounds so many updates take."""
        return -(-steps // self.rules.updates)

    def drawing(self, steps: int) -> TextsWritten:
        """Return time and memory of drawing the answers of all rounds."""
        if draws_by_vllm(self.recipe):
            return self._by_vllm(self.count(steps))
        questions = self.answers // self.rules.samples_per_prompt
        return self._written(self.count(steps), self.asked, questions)

    def held_out(self, questions: int) -> TextsWritten:
        """Return time and memory of answering held-out questions once."""
        most = self.rules.max_new_tokens
        texts = Texts("held-out questions", questions, most, at_once=True)
        return self._written(1, texts, questions)

    def with_peak(self) -> Plan:
        """Return the plan with the peak of a whole round, which is that of drawing answers where
        that is higher.
        """
        predicted, drawn = self.plan.predicted, self.drawing(1).memory
        peak, device = predicted["peak_memory_bytes"], predicted.get("device_memory_bytes")
        outside = 0.0 if device is None else max(0.0, device.value - peak.value)
        peak = self._of_update(peak)
        low = max(peak.low, drawn.low - outside)
        if drawn.value - outside <= peak.value:
            peaks = {"peak_memory_bytes": replace(peak, low=low)}
            return replace(self.plan, predicted={**predicted, **peaks})
        of_drawing = Prediction(
            drawn.value - outside,
            low,
            max(peak.high, drawn.high - outside),
            f"while answers are drawn: {drawn.basis}",
        )
        peaks = {"peak_memory_bytes": of_drawing}
        if device is not None:
            peaks["device_memory_bytes"] = replace(drawn, high=max(drawn.high, device.high))
        return replace(self.plan, predicted={**predicted, **peaks})

    def _of_update(self, peak: Prediction) -> Prediction:
        """Return the peak of an update, whose rows count as full, where a CPU computes less: where
        answers are shorter, and a question is computed once for all of its answers.
        """
        rules, recipe, plan = self.recipe.rewards, self.recipe, self.plan
        if plan.device.get("kind") != "cpu" or not isinstance(rules, CountedRewards):
            return peak
        short, usual, _ = _computed_positions(recipe, rules, "cpu")
        full: float = recipe.sequence_length
        if shares_beginnings(recipe.plan.packing, "cpu"):
            room = full - rules.max_new_tokens
            full = room / rules.samples_per_prompt + rules.max_new_tokens
        most = plan.micro_batches[0] * recipe.sequence_length
        grows = sum(plan.memory_terms.get(name, 0) for name in _OF_POSITIONS)
        lost = grows + plan.memory_terms.get("allocator slack", 0)
        ends = ((peak.low, grows, short), (peak.value, lost, usual), (peak.high, grows, full))
        low, value, high = (
            end - max(0.0, 1 - rules.answers * each / most) * size for end, size, each in ends
        )
        return replace(peak, low=low, value=value, high=high)

    def _written(self, times: int, texts: Texts, questions: int) -> TextsWritten:
        writer = self._writer
        written, of_cpu = writer.write(times, [texts]), self._of_cpu(writer)
        if of_cpu is None:
            return written
        room, reach = writer.recipe.sequence_length, self.recipe.sequence_length
        rows = written.rows
        tensors = of_cpu.tensors_bytes(rows, min(questions, rows), room, reach)
        memory = self._of_process(tensors, f"{written.memory.basis}, and copies of the weights")
        verdict = verdict_on(memory, self.usable_bytes)
        return replace(written, memory=memory, verdict=verdict, tensors_bytes=tensors)

    def _by_vllm(self, times: int) -> TextsWritten:
        """Return what vLLM takes, with the room that it keeps."""
        writer, plan, kind = self._writer, self.plan, str(self.plan.device.get("kind"))
        share = vllm_share(
            self.recipe, writer.config, plan.precision, kind, plan.device.get("memory_bytes") or 0
        )
        held = held_by_vllm(share, writer.config, plan.parameters, plan.precision, kind)
        stays = sum(plan.memory_terms.get(name, 0) for name in _STAY)
        basis = (
            f"weights, optimizer states and vLLM, with {format_bytes(share.cache_bytes)} of keys"
            f" and values for {share.rows:,} answers"
        )
        memory = self._of_process(stays, basis, held[1])
        if kind != "cpu":
            stays += writer.outside_bytes
            memory = Prediction(stays, stays - held[1], stays + held[1], basis)
        found = writer.write(times, [self.asked])
        time_s = found.time_s
        if time_s is not None:
            why = "as brimful's engine, with a wider interval, as no rate of vLLM's is known"
            low, high = time_s.low / _VLLM_SPREAD, time_s.high * _VLLM_SPREAD
            time_s = Prediction(time_s.value, low, high, why)
        return TextsWritten(
            time_s,
            memory,
            verdict_on(memory, self.usable_bytes),
            share.rows,
            share.cache_bytes // (share.rows + 1),
            share.rows,
        )

    def _of_process(self, tensors_bytes: int, basis: str, vllm_doubt: int = 0) -> Prediction:
        """Return the memory of a CPU process whose tensors take this many bytes at their peak."""
        process = self.plan.memory_terms.get("process", 0)
        doubt = min(process, GROWTH_WITH_KERNELS_BYTES[1]) + vllm_doubt
        low, value, high = (process + (1 + lost) * tensors_bytes for lost in (0.0, *HOST_SLACK))
        return Prediction(value, low - doubt, high + doubt, basis)

    def scoring(self, trace: Trace) -> Prediction | None:
        """Return the memory of scoring answers without gradients, of a trace whose evaluation batch
        is as large as a micro-batch of the plan; None on other devices than a CPU, whose allocators
        keep what an update took.
        """
        if self.plan.device.get("kind") != "cpu":
            return None
        tensors = scored_bytes(trace, with_states=self.scores_all)
        tensors += self.plan.memory_terms.get(VLLM, 0)
        return self._of_process(tensors, "a pass without gradients over each answer")

    def _of_cpu(self, writer: TextWriter) -> DrawingMemory | None:
        """Return the model's tensors while it draws; None on other devices, and where the bytes of
        the weights are not known.
        """
        plan, recipe = self.plan, self.recipe
        terms, in_four_bits = plan.memory_terms, recipe.quantize != "none"
        if plan.device.get("kind") != "cpu" or "weights" not in terms:
            return None
        parameters = plan.parameters - terms.get("adapters", 0) // FP32
        of_weight = round(terms["weights"] / parameters)
        if in_four_bits:
            of_weight = BF16 if plan.precision == "bf16" else FP32
        return DrawingMemory(
            writer.config,
            parameters,
            sum(terms.get(name, 0) for name in _STAY),
            of_weight,
            plan.precision == "bf16",
            recipe.adapter is not None,
            in_four_bits,
            writer.fill,
        )

    @cached_property
    def _writer(self) -> TextWriter:
        """The model with what training holds meanwhile: gradients are let go of."""
        room = self.recipe.sequence_length - self.rules.max_new_tokens
        writer = writer_of(self.recipe, self._whole, self.usable_bytes)
        recipe = self.recipe.model_copy(update={"sequence_length": room})
        held = sum(self.plan.memory_terms.get(name, 0) for name in ("optimizer states", VLLM))
        return replace(writer, recipe=recipe, beside_bytes=held)

    @cached_property
    def _whole(self) -> Plan:
        """The plan with the time of a step that learns from every answer."""
        step, kind = self.plan.predicted.get("step_time_s"), str(self.plan.device.get("kind"))
        if step is None:
            return self.plan
        learned, every = (
            time_shares(self.recipe, kind, self.plan.fixed_share, shares)
            for shares in (learned_share(self.recipe), ALL)
        )
        low, value, high = (whole / some for whole, some in zip(every, learned, strict=True))
        whole = {"step_time_s": step.by(Prediction(value, low, high, ""))}
        if (tokens := self.plan.predicted.get("tokens_per_s")) is not None:
            whole["tokens_per_s"] = replace(tokens, value=tokens.value / value)
        return replace(self.plan, predicted={**self.plan.predicted, **whole})

    @property
    def scores_all(self) -> bool:
        """Whether the trainer scores the answers of every round, and not of the first one alone,
        where sampler and trainer are compared.
        """
        return bool(self.recipe.loss_options["rewards"]["old"])

    def times(self, steps: int) -> Predictions:
        """Predict the seconds of so many updates' rounds, by name of the phase."""
        drawn, step_time = self.drawing(steps).time_s, self._whole.predicted["step_time_s"]
        share = PASSES_OF_TRAINING["adapter" if self.recipe.adapter else "full"]
        rounds = (
            self.count(steps)
            if self.scores_all
            else min(compared_rounds(self.recipe), self.count(steps))
        )
        passes = share * self.rules.batches * rounds
        scored = step_time.times(passes, "a pass without gradients over each answer")
        found = {
            "verifying_time_s": verdicts_time(self.count(steps), self.asked),
            "scoring_time_s": scored,
        }
        return found if drawn is None else {"sampling_time_s": drawn} | found


def rounds_of(recipe: Recipe, plan: Plan) -> AnswerRounds:
    """Return the rounds of a run that has all of the memory of its plan's device."""
    return AnswerRounds(recipe, plan, int(plan.device.get("memory_bytes") or 0))


def computed_share(recipe: Recipe, mean_positions: float, device_kind: str) -> float:
    """Return the share of a step's positions that are computed, where a question is computed once
    for its group.

    Args:
        recipe: The recipe.
        mean_positions: Of an answer with its question.
        device_kind: "cpu", "cuda" or "mps".
    """
    if not shares_beginnings(recipe.plan.packing, device_kind):
        return 1.0
    rules = rewards_of(recipe)
    prompt = mean_positions - ANSWER_SHARE[1] * rules.max_new_tokens
    return 1 - prompt * (1 - 1 / rules.samples_per_prompt) / mean_positions


def time_shares(
    recipe: Recipe, device_kind: str, fixed_share: float, learned: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return low, expected and high time of a step, over the time of one that learns from answers
    of expected length, all of them.

    Args:
        recipe: The recipe, as planning counts: of one that is not, lengths are not known.
        device_kind: "cpu", "cuda" or "mps".
        fixed_share: Share of the latter time that does not shrink with the positions. More
            positions may be more passes.
        learned: Low, expected and high share of the answers that are learned from.
    """
    least = most = 1.0
    if isinstance(recipe.rewards, CountedRewards):
        short, usual, full = _computed_positions(recipe, recipe.rewards, device_kind)
        least, most = short / usual, full / usual
    (few, some, every), rest = learned, 1 - fixed_share
    return fixed_share + rest * few * least, fixed_share + rest * some, every * most


def _computed_positions(
    recipe: Recipe, rules: CountedRewards, device_kind: str
) -> tuple[float, float, float]:
    """Return the low, expected and high mean positions of an answer that a step computes."""
    usual = rules.positions * computed_share(recipe, rules.positions, device_kind)
    short, full = (
        usual + (share - ANSWER_SHARE[1]) * rules.max_new_tokens
        for share in (ANSWER_SHARE[0], ANSWER_SHARE[2])
    )
    return short, usual, full


def seconds_of_round(recipe: Recipe, plan: Plan) -> Numbers:
    """Return what one round is predicted to take, as `round_` and the name of the phase; nothing
    where the run has none, or times are not known.
    """
    if not recipe.kind.draws_answers or "step_time_s" not in plan.predicted:
        return {}
    rounds = rounds_of(recipe, plan)
    times = rounds.times(rounds.rules.updates)
    return {f"round_{name}": each.value for name, each in times.items()}
