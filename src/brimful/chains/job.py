"""A recipe's job, planned: what each of its phases takes where its trainings are planned, and what
they took beside that.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.base.errors import BrimfulError, PlanError
from brimful.base.text import plural
from brimful.chains.phases import SFT, BaseScores, Member, RoundSampling, phases_of
from brimful.data.counts import num_questions, published_rows
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
from brimful.planning.plan import Plan, Prediction, summed, verdict_on
from brimful.planning.specs import ModelFacts, model_facts
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.planning.writing import (
    PASSES_OF_TRAINING,
    Texts,
    TextsWritten,
    TextWriter,
    task_examples,
    verdicts_time,
)
from brimful.recipe import Recipe, RftRecipe
from brimful.recipe.rewards import RewardsRecipe, rewards_of

if TYPE_CHECKING:
    from brimful.evaluation.task import Task

_REFERENCE_TIME = "reference_time_s"
_UNREAD = "not known before the questions are read; rft.questions.max_questions=N says it"


@dataclass(frozen=True)
class PlannedTraining:
    """The plan that those trainings of a job share that differ in their data or seed only.

    Attributes:
        recipe: As planning counts.
        plan: Of one of them.
        footprint: Its memory; None where it is not at hand, as in a run folder.
        conditions: What its cost rests on.
        reference_memory: Peak on the device while the untrained model scores answers; None where it
            scores none, and where it is not at hand.
    """

    recipe: Recipe
    plan: Plan
    footprint: Footprint | None = None
    conditions: Conditions = field(default_factory=Conditions)
    reference_memory: Prediction | None = None

    @classmethod
    def of(cls, entry: Surveyed) -> "PlannedTraining":
        derived = entry.derived
        made = cls(derived.prepared.recipe, derived.plan, derived.footprint, entry.conditions)
        if _REFERENCE_TIME not in derived.plan.predicted:
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

    def times(self, steps: int | None) -> Iterator[tuple[str, Prediction]]:
        """Yield the phases of one training with their time, of `steps` optimizer steps in place of
        the plan's; nothing where no time is known.
        """
        found = self.plan.predicted
        if steps is not None:
            found = whole_run(self.recipe, self.plan, self.conditions, steps)
        if "total_time_s" not in found:
            return
        if _REFERENCE_TIME not in found:
            yield TRAINING, found["total_time_s"]
            return
        yield REFERENCE, found[_REFERENCE_TIME]
        rest = {name: found[name] for name in (*PARTS, "base_time_s") if name in found}
        yield TRAINING, total_time(rest)


def as_trained(entries: Mapping[str, Surveyed | Unplanned]) -> "Alike":
    """Return surveyed trainings as `job_of` takes them."""
    return {
        name: PlannedTraining.of(entry) if isinstance(entry, Surveyed) else entry
        for name, entry in entries.items()
    }


Alike = Mapping[str, PlannedTraining | Unplanned]
"""Plans of a job's trainings, by variant of a study; all trainings of rounds share that of ""."""


def job_of(recipe: Recipe, trained: Alike, planned: str = "") -> WholeJob:
    """Return the phases of a recipe's job with what they take.

    Args:
        recipe: The whole one.
        trained: By variant of a study, or by the name of a recipe that is trained first; "" is
            the training itself.
        planned: The variant whose plan is shown.

    Raises:
        RequestError: no such task or verifier; PlanError: the model is none.
    """
    found = phases_of(recipe)
    runs = [phase for phase in found if isinstance(phase, Member)]
    drawings = sum(isinstance(phase, RoundSampling) for phase in found)
    beside: list[JobPhase] = []
    if recipe.rft is not None:
        beside += _samples(recipe, recipe.rft, _one(trained, ""), drawings)
    elif recipe.kind.draws_answers and (drawing := _one(trained, "")) is not None:
        beside += _rewarded(recipe, rewards_of(recipe), drawing)
    has_base = any(isinstance(phase, BaseScores) for phase in found)
    beside += _answers(recipe, runs, trained, has_base=has_base)
    known = next((each for each in trained.values() if isinstance(each, PlannedTraining)), None)
    conditions = Conditions() if known is None else known.conditions

    def with_steps(steps: int | None) -> WholeJob:
        phases = (*_trainings(recipe, runs, trained, steps), *beside)
        return WholeJob(phases, conditions, planned, with_steps)

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
            _about(recipe, variant, count, is_first=variant not in counts),
            times.get(TRAINING),
            entry.plan.predicted.get("peak_memory_bytes")
            if footprint is None
            else footprint.driver,
            usable_bytes,
            "fits" if footprint is None else footprint.verdict,
            variant,
        )


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


def _samples(
    recipe: Recipe, rft: RftRecipe, trained: PlannedTraining | None, drawings: int
) -> Iterator[JobPhase]:
    """What is drawn by the student or the teacher, and judged."""
    sampled = _sampled(rft)
    if sampled is None or trained is None:
        yield JobPhase(SAMPLING, _UNREAD if sampled is None else "not known", None)
        return
    author = "the student" if rft.teacher is None else rft.teacher
    about = f"{drawings} x {sampled.count:,} answers of {author} to {sampled.what}"
    try:
        writer = _writer(recipe, trained, rft.teacher)
    except BrimfulError as error:
        yield JobPhase(SAMPLING, f"{about}, not known: {error}", None)
    else:
        yield _writing(SAMPLING, about, trained, [writer.write(drawings, [sampled])])
    judged = f"{drawings} x {sampled.count:,} answers, beside the sampling"
    yield JobPhase(VERIFYING, judged, verdicts_time(drawings, sampled))


def _rewarded(recipe: Recipe, rules: RewardsRecipe, trained: PlannedTraining) -> Iterator[JobPhase]:
    """What is drawn between the updates of a run, judged and scored, and answered for its
    evaluations.
    """
    from brimful.verify.verifier import load_verifier  # noqa: PLC0415 - for such runs alone

    plan = trained.plan
    steps = plan.total_steps or 1
    rounds = -(-steps // rules.updates)
    count = rules.batches * recipe.effective_batch
    programs = any(load_verifier(name).needs_sandbox for name in rules.verifiers)
    groups = count // rules.samples_per_prompt
    what = f"{groups:,} questions x {rules.samples_per_prompt}"
    drawn = Texts(what, count, rules.max_new_tokens, "program" if programs else "number")
    writer = _writer(recipe, trained, None)
    writer = replace(
        writer,
        recipe=recipe.model_copy(
            update={"sequence_length": recipe.sequence_length - rules.max_new_tokens}
        ),
        beside_bytes=plan.memory_terms.get("optimizer states", 0),
    )
    about = f"{plural(rounds, 'round')} x {count:,} answers: {what}"
    yield _writing(SAMPLING, about, trained, [writer.write(rounds, [drawn])])
    yield JobPhase(VERIFYING, f"{rounds} x {count:,} answers", verdicts_time(rounds, drawn))
    memory = plan.predicted.get("peak_memory_bytes")
    step_time = plan.predicted.get("step_time_s")
    if recipe.loss_options["rewards"]["old"] and step_time:
        passes = (
            rounds * rules.batches * PASSES_OF_TRAINING["adapter" if recipe.adapter else "full"]
        )
        value, low, high = (passes * t for t in (step_time.value, step_time.low, step_time.high))
        time = Prediction(value, low, high, "a pass without gradients over each answer")
        told = f"{rounds} x {count:,} answers by the weights that drew them; at most as an update"
        yield JobPhase(SCORING, told, time, memory, trained.usable_bytes)
    held_out = trained.conditions.validation_sequences or 0
    most = recipe.evaluation.max_sequences or held_out
    if most and plan.evaluate_every:
        times = -(-steps // plan.evaluate_every)
        texts = Texts("held-out questions", most, rules.max_new_tokens)
        about = f"{times} x {most:,} likeliest answers"
        yield _writing(HELD_OUT, about, trained, [writer.write(times, [texts])])


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
    for number, ((own, each), texts) in enumerate(zip(done, asked, strict=True)):
        if texts:
            models = 1 + (scores_base and number == 0)
            written.append(_writer(own, each, None).write(models, texts))
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


def _writer(recipe: Recipe, trained: PlannedTraining, teacher: str | None) -> TextWriter:
    """The model that a recipe tunes, or another one.

    Raises:
        PlanError: no such model, or nobody knows its size.
    """
    plan, is_student = trained.plan, teacher is None
    if teacher is not None:
        changes = {"model": teacher, "adapter": None, "quantize": "none"}
        recipe = recipe.model_copy(update=changes)
    facts: ModelFacts = model_facts(recipe)
    config = dict(facts.config)
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config |= text_config
    parameters = plan.parameters if is_student else _known(facts, recipe)
    return TextWriter(trained.recipe, plan, config, parameters, trained.usable_bytes, is_student)


def _known(facts: ModelFacts, recipe: Recipe) -> int:
    if facts.parameters is None:
        raise PlanError(f"the size of {recipe.model} is not in the catalog")
    return facts.parameters


def _sampled(rft: RftRecipe) -> Texts | None:
    """What one round draws with one seed; None where the number of questions is not known yet."""
    questions = num_questions(rft)
    if questions is None:
        return None
    from brimful.verify.verifier import load_verifier  # noqa: PLC0415 - for rounds alone

    needs_sandbox = load_verifier(rft.verifier).needs_sandbox
    verdict = "program" if needs_sandbox else "number"
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


def phases_beside_measured(
    recipe: Recipe,
    base: Path | None,
    done: Sequence[Member],
    drawn: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Return a record for each phase: what was expected of the whole job by the plans of its runs,
    with the interval, and what it took so far.

    Args:
        recipe: Of the job.
        base: Folder of the base's scores.
        done: Trainings, in order.
        drawn: Facts of the drawings; `seconds` is the time of the last session of each.
    """
    from brimful.kinds.run_data import plan_of  # noqa: PLC0415 - plans do without torch
    from brimful.runs import read_run  # noqa: PLC0415
    from brimful.runs.measurements import answering_time_s  # noqa: PLC0415

    first, measured = _trained(recipe, done)
    if drawn:
        measured[SAMPLING, ""] = sum(float(facts["seconds"]) for facts in drawn)
    scored = [*([] if base is None else [base]), *(member.folder for member in done)]
    measured[ANSWERS, ""] = sum(answering_time_s(read_run(folder)) for folder in scored)
    try:
        plans = {
            name: PlannedTraining(each.recipe, plan_of(each.folder)) for name, each in first.items()
        }
        phases = job_of(recipe, plans).phases
    except BrimfulError:  # what can no longer be predicted leaves what was measured
        phases = tuple(JobPhase(name, "", None, variant=variant) for name, variant in measured)
    return [_record(phase, measured.get((phase.name, phase.variant))) for phase in phases]


def _trained(
    recipe: Recipe, done: Sequence[Member]
) -> tuple[dict[str, Member], dict[tuple[str, str], float]]:
    """Return the first training of each plan, and what all of them took, by phase and plan."""
    from brimful.runs import read_run  # noqa: PLC0415 - plans do without torch
    from brimful.runs.measurements import reference_time_s, total_time_s  # noqa: PLC0415

    first, measured = dict[str, Member](), Counter[tuple[str, str]]()
    has_variants = recipe.study is not None
    for member in done:
        is_first = recipe.kind.compares_answers and member.variant == SFT
        variant = member.variant if has_variants or is_first else ""
        first.setdefault(variant, member)
        run = read_run(member.folder)
        before_s, total_s = reference_time_s(run), total_time_s(run) or 0.0
        took = {REFERENCE: before_s, TRAINING: max(0.0, total_s - before_s)}
        measured.update({(name, variant): seconds for name, seconds in took.items() if seconds})
    return first, dict(measured)


def _record(phase: JobPhase, measured_s: float | None) -> dict[str, Any]:
    time = phase.time_s
    expected = (
        {} if time is None else {"expected_s": time.value, "low_s": time.low, "high_s": time.high}
    )
    return {"name": phase.title, **expected, "measured_s": measured_s, "about": phase.about}
