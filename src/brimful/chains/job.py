"""A recipe's job, planned: what each of its phases takes where its trainings are planned, and what
they took beside that.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from brimful.base.errors import BrimfulError
from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.chains.phases import SFT, BaseScores, Member, RoundSampling, phases_of
from brimful.data.counts import published_rows
from brimful.planning.cost import PARTS, Conditions, total_time, whole_run
from brimful.planning.job import (
    ANSWERS,
    HELD_OUT,
    ORDER,
    REFERENCE,
    SAMPLING,
    SCORING,
    TRAINING,
    VERIFYING,
    JobPhase,
    WholeJob,
)
from brimful.planning.memory import Footprint, before_training
from brimful.planning.plan import Plan, Prediction, Predictions, summed, verdict_on
from brimful.planning.rounds import AnswerRounds
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.planning.vllm_share import VLLM
from brimful.planning.writing import (
    Texts,
    TextsWritten,
    task_examples,
    verdicts_time,
    writer_of,
)
from brimful.recipe import Recipe, RftRecipe
from brimful.recipe.rewards import compared_rounds
from brimful.recipe.rft import PROGRAM_VERIFIERS

if TYPE_CHECKING:
    from brimful.evaluation.task import Task

REFERENCE_TIME = "reference_time_s"
_MOST_ROWS = 1024
"""Sequences of a micro-batch up to which the longest answer is looked for."""
_UNREAD = "not known before the questions are read; rft.questions.max_questions=N says it"


@dataclass(frozen=True)
class PlannedTraining:
    """The plan that those trainings of a job share that differ in their data or seed only.

    Attributes:
        recipe: Recipe in the units that planning counts in.
        plan: The plan of one of them.
        footprint: Its memory; None where it is not at hand, as in a run folder.
        conditions: What its cost rests on.
        reference_memory: Peak on the device while the untrained model scores answers; None where it
            scores none, and where it is not at hand.
        scoring_memory: The same while the model in training scores its own answers.
        most_tokens: Tokens that one micro-batch can hold, where a run draws answers and packs them;
            0: not known.
    """

    recipe: Recipe
    plan: Plan
    footprint: Footprint | None = None
    conditions: Conditions = field(default_factory=Conditions)
    reference_memory: Prediction | None = None
    scoring_memory: Prediction | None = None
    most_tokens: int = 0

    @classmethod
    def of(cls, entry: Surveyed) -> "PlannedTraining":
        derived = entry.derived
        made = cls(derived.prepared.recipe, derived.plan, derived.footprint, entry.conditions)
        if made.recipe.kind.draws_answers:
            trace = derived.memory.evaluated(derived.plan.micro_batches[0])
            rounds = AnswerRounds(made.recipe, derived.plan, made.usable_bytes)
            made = replace(made, scoring_memory=rounds.scoring(trace))
            if derived.plan.packing != "packed":
                return made
            rows = derived.memory.largest(_MOST_ROWS)
            return replace(made, most_tokens=rows * derived.plan.sequence_length)
        if REFERENCE_TIME not in derived.plan.predicted:
            return made
        trace = derived.memory.replayed(derived.plan.micro_batches[0]).trace
        return replace(made, reference_memory=before_training(trace, derived.footprint))

    @property
    def fits(self) -> bool:
        """Whether it is done at all."""
        return self.footprint is None or self.footprint.verdict != "does not fit"

    @property
    def usable_bytes(self) -> int:
        if self.footprint is not None:
            return self.footprint.usable_bytes
        return int(self.plan.device.get("memory_bytes") or 0)

    def predicted(self, steps: int | None) -> Predictions:
        """Return what one training takes, of `steps` optimizer steps in place of the plan's."""
        if steps is None:
            return self.plan.predicted
        return whole_run(self.recipe, self.plan, self.conditions, steps)

    def times(self, steps: int | None) -> Iterator[tuple[str, Prediction]]:
        """Yield the phases of one training with their time, but those of rounds of answers; nothing
        where no time is known.
        """
        found = self.predicted(steps)
        if "total_time_s" not in found:
            return
        if REFERENCE_TIME in found:
            yield REFERENCE, found[REFERENCE_TIME]
        elif not self.recipe.kind.draws_answers:
            yield TRAINING, found["total_time_s"]
            return
        own = [*PARTS, "base_time_s"]
        if self.recipe.kind.draws_answers:
            own.remove("evaluation_time_s")  # as a phase
        yield TRAINING, total_time({name: found[name] for name in own if name in found})


def as_trained(entries: Mapping[str, Surveyed | Unplanned]) -> "Alike":
    """Return surveyed trainings as `job_of` takes them."""
    return {
        name: PlannedTraining.of(entry) if isinstance(entry, Surveyed) else entry
        for name, entry in entries.items()
    }


Alike = Mapping[str, PlannedTraining | Unplanned]
"""Plans of a job's trainings, by variant of a study; all trainings of rounds share that of ""."""


def job_of(recipe: Recipe, trained: Alike, questions: int | None, planned: str = "") -> WholeJob:
    """Return the phases of a recipe's job with what they take.

    Args:
        recipe: The whole one.
        trained: Plans of trainings, by variant of a study, or by the name of a recipe that is
            trained first; "" is the training itself.
        questions: Asked in a round; None: not known yet, or there are no rounds.
        planned: The variant whose plan is shown.

    Raises:
        RequestError: no such task or verifier; PlanError: the model is none.
    """
    found = phases_of(recipe)
    runs = [phase for phase in found if isinstance(phase, Member)]
    drawings = sum(isinstance(phase, RoundSampling) for phase in found)
    beside: list[JobPhase] = []
    if recipe.rft is not None:
        beside += _samples(recipe.rft, _one(trained, ""), drawings, questions)
    has_base = any(isinstance(phase, BaseScores) for phase in found)
    beside += _answers(recipe, runs, trained, has_base=has_base)
    known = {name: each for name, each in trained.items() if isinstance(each, PlannedTraining)}
    conditions = next((each.conditions for each in known.values()), Conditions())
    plans = {name: each.plan for name, each in known.items() if each.fits}

    def with_steps(steps: int | None) -> WholeJob:
        phases = (*_trainings(recipe, runs, trained, steps), *beside)
        return WholeJob(phases, conditions, planned, with_steps, plans)

    return with_steps(None)


def _one(trained: Alike, variant: str) -> PlannedTraining | None:
    """Return the training of a variant; those of rounds have one plan."""
    entry = trained.get(variant, trained.get(""))
    return entry if isinstance(entry, PlannedTraining) else None


def _trainings(
    recipe: Recipe, runs: Sequence[Member], trained: Alike, steps: int | None
) -> Iterator[JobPhase]:
    counts = Counter(run.variant if run.variant in trained else "" for run in runs)
    for variant, entry in trained.items():
        count = counts.get(variant, 1)
        if isinstance(entry, Unplanned):
            yield JobPhase(TRAINING, entry.reason, None, verdict="does not fit", variant=variant)
            continue
        times = {
            name: summed([("", time)] * count, time.basis)
            for name, time in entry.times(steps if variant in counts else None)
        }
        usable_bytes, held = entry.usable_bytes, entry.reference_memory
        if (before := times.get(REFERENCE)) is not None:
            verdict = "fits" if held is None else verdict_on(held, usable_bytes)
            about = f"{f'{count} x ' * (count > 1)}{before.basis}"
            yield JobPhase(REFERENCE, about, before, held, usable_bytes, verdict, variant)
        footprint = entry.footprint
        yield JobPhase(
            TRAINING,
            _about(recipe, variant, count, is_first=variant not in counts)
            + _longest(entry) * (variant in counts),
            times.get(TRAINING),
            entry.plan.predicted.get("peak_memory_bytes")
            if footprint is None
            else footprint.driver,
            usable_bytes,
            "fits" if footprint is None else footprint.verdict,
            variant,
        )
        for phase in _rewarded(entry, steps if variant in counts else None):
            yield _repeated(replace(phase, variant=variant), count)


def _about(recipe: Recipe, variant: str, count: int, *, is_first: bool) -> str:
    if is_first:
        return "before all else: the recipe starts from its model"
    if recipe.rft is not None and recipe.kind.compares_answers:
        what = "on demonstrations" if variant == SFT else "from pairs of right and wrong answers"
        return f"{count} of them: {what}"
    if recipe.rft is not None:
        rounds, seeds = plural(recipe.rft.rounds, "round"), len(recipe.rft.seeds)
        return f"{count} of them: on demonstrations and in {rounds}, seeds: {seeds}"
    changes = recipe.study.variants[variant] if recipe.study is not None else []
    return "; ".join([plural(count, "run"), *changes])


def _longest(trained: PlannedTraining) -> str:
    if not trained.most_tokens:
        return ""
    return f"; an answer with its question fits up to {trained.most_tokens:,} tokens"


def _samples(
    rft: RftRecipe, trained: PlannedTraining | None, drawings: int, questions: int | None
) -> Iterator[JobPhase]:
    """What is drawn by the student or the teacher, and judged."""
    sampled = _sampled(rft, questions)
    if sampled is None or trained is None:
        yield JobPhase(SAMPLING, _UNREAD if sampled is None else "not known", None)
        return
    author = "the student" if rft.teacher is None else rft.teacher
    about = f"{drawings} x {sampled.count:,} answers of {author} to {sampled.what}"
    try:
        writer = writer_of(trained.recipe, trained.plan, trained.usable_bytes, rft.teacher)
    except BrimfulError as error:
        yield JobPhase(SAMPLING, f"{about}, not known: {error}", None)
    else:
        yield _writing(SAMPLING, about, trained, [writer.write(drawings, [sampled])])
    judged = f"{drawings} x {sampled.count:,} answers, beside the sampling"
    yield JobPhase(VERIFYING, judged, verdicts_time(drawings, sampled))


def _repeated(phase: JobPhase, count: int) -> JobPhase:
    """Return a phase of several runs that are alike."""
    if count == 1 or phase.time_s is None:
        return phase
    time_s = summed([("", phase.time_s)] * count, phase.time_s.basis)
    return replace(phase, time_s=time_s, about=f"{count} x {phase.about}")


def _rewarded(trained: PlannedTraining, steps: int | None) -> Iterator[JobPhase]:
    """What is drawn between the updates of a run, judged and scored, and answered for its
    evaluations, where a run is rewarded for its answers.
    """
    if not trained.recipe.kind.draws_answers:
        return
    plan, recipe, usable_bytes = trained.plan, trained.recipe, trained.usable_bytes
    rounds, times = AnswerRounds(recipe, plan, usable_bytes), trained.predicted(steps)
    steps = steps or plan.total_steps or 1
    count = f"{plural(rounds.count(steps), 'round')} x {rounds.answers:,} answers"
    drawn = rounds.drawing(steps)
    held = (
        f"each takes {format_bytes(drawn.row_bytes)} of keys, values and logits and memory holds"
        f" {drawn.most_rows:,}, beside weights and optimizer states, which stay"
    )
    if VLLM in plan.memory_terms:
        held = (
            f"vLLM keeps {format_bytes(plan.memory_terms[VLLM])} of the device in every phase:"
            " the weights a second time, and keys and values of"
            f" {format_bytes(drawn.row_bytes)} an answer"
        )
    yield _writing(SAMPLING, f"{count}: {rounds.asked.what}; {held}", trained, [drawn])
    yield JobPhase(VERIFYING, count, times.get("verifying_time_s"))
    about = f"{count} by the weights that drew them"
    if not rounds.scores_all:
        often = "once" if compared_rounds(recipe) == 1 else "twice"
        about = f"{rounds.answers:,} answers, {often}: sampler and trainer compared"
    memory = trained.scoring_memory or plan.predicted.get("peak_memory_bytes")
    yield JobPhase(SCORING, about, times.get("scoring_time_s"), memory, usable_bytes)
    known = trained.conditions.validation_sequences or rounds.answers
    written = rounds.held_out(min(known, recipe.evaluation.max_sequences or known))
    if (evaluations := times.get("evaluation_time_s")) is not None:
        each = replace(written, time_s=evaluations)
        yield _writing(HELD_OUT, f"likeliest answers: {evaluations.basis}", trained, [each])


def _answers(
    recipe: Recipe, runs: Sequence[Member], trained: Alike, *, has_base: bool
) -> Iterator[JobPhase]:
    """What every run's model answers for its scores, and the base; tasks that share answers are
    answered once.
    """
    planned = [(run.recipe, _one(trained, run.variant)) for run in runs]
    done = [(own, each) for own, each in planned if each is not None and each.fits]
    if not done:
        return
    base = done[0][1].plan.base
    scores_base = has_base or bool(base and base.tasks)
    written, asked = [], [_texts_of(own, each) for own, each in done]
    for number, ((_, each), texts) in enumerate(zip(done, asked, strict=True)):
        if texts:
            models = 1 + (scores_base and number == 0)
            writer = writer_of(each.recipe, each.plan, each.usable_bytes)
            written.append(writer.write(models, texts))
    if written:
        told = plural(len(written) + scores_base, "model")
        base_too = ", the base among them," if scores_base else ""
        about = f"{told}{base_too} x {_told(asked[0])}"
        yield _writing(ANSWERS, about, done[0][1], written)


def _told(texts: Sequence[Texts]) -> str:
    names = ", ".join(each.what for each in texts)
    return f"{sum(each.count for each in texts):,} answers to {names}"


def _texts_of(recipe: Recipe, trained: PlannedTraining) -> list[Texts]:
    """What a model answers for the scores that a recipe asks for."""
    rules = recipe.evaluation
    if not rules.tasks:
        return []
    from brimful.evaluation.task import checked_tasks, task_changes  # noqa: PLC0415 - brings Jinja

    tasks, _ = checked_tasks(rules.tasks, task_changes(rules))
    by_request = {task.request: task for task in tasks}
    return [_asked(task, recipe, trained) for task in by_request.values()]


def _writing(
    name: str, about: str, trained: PlannedTraining, written: Sequence[TextsWritten]
) -> JobPhase:
    """Return the phase in which several models write, one after another."""
    times = [each.time_s for each in written if each.time_s is not None]
    most = max(written, key=lambda each: (ORDER.index(each.verdict), each.memory.value))
    return JobPhase(
        name,
        f"{about}; {most.rows:,} at once",
        summed([("", time) for time in times], times[0].basis) if times else None,
        most.memory,
        trained.usable_bytes,
        most.verdict,
    )


def _sampled(rft: RftRecipe, questions: int | None) -> Texts | None:
    """What one round draws with one seed; None where the number of questions is not known yet."""
    if questions is None:
        return None
    verdict = "program" if rft.verifier in PROGRAM_VERIFIERS else "number"
    what = f"{questions:,} questions"
    return Texts(what, questions * rft.samples_per_prompt, rft.max_new_tokens, verdict)


def _asked(task: "Task", recipe: Recipe, alike: PlannedTraining) -> Texts:
    known, source = None, task.data
    if source.run == "validation":
        known = alike.conditions.validation_sequences
    elif source.builtin is not None and source.splits:  # else its questions are in a file
        from brimful.data.conversion import NUM_ROWS  # noqa: PLC0415

        known = sum(NUM_ROWS[split] for split in source.splits)
    elif source.hub is not None:
        # Others are solved examples.
        splits = [name for name in source.splits if name in {"train", "validation", "test"}]
        known = published_rows(source.hub, source.config, splits)
    count = task_examples(known, recipe.evaluation.max_examples) * task.sampling.samples
    return Texts(task.name, count, task.sampling.max_new_tokens)
