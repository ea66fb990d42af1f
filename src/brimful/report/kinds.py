"""What a report says of each kind of run: its words, its scores and the commands that use its
model.

`report_kind(run)` chooses by `run.kind`; the base class is a language model trained on documents.
"""

import shlex

from brimful.base.types import Bounds
from brimful.report import labels, quantities
from brimful.report.commands import name_of
from brimful.report.page import plan_page
from brimful.report.page.score_tables import loss_table
from brimful.report.scores import SplitScore, baselines, best_evaluation, main_score
from brimful.report.table import Table
from brimful.report.tuned import before_tuning, score_before
from brimful.report.views import Card, Command
from brimful.runs.folder import RunFolder

EN_DASH = "\N{EN DASH}"


class ReportKind:
    """A language model trained on documents.

    Attributes:
        auto_class: Class by which transformers loads the model.
        learned: What the run counts in steps.
        loss_unit: Unit of the loss.
        counted: Names of the tokens that the loss is over, and of the texts that hold them.
        prompt_end: Text between the prompt of a sample and its completion.
        always_has_samples: Whether a run without samples says that there are none.
        has_bits_per_byte: Whether the loss makes bits per byte of the text.
        tasks: Named in the command that scores a tuned model; empty: none.
    """

    model_name = "language model"
    auto_class = "AutoModelForCausalLM"
    learned = "tokens"
    loss_unit = "nats per token"
    counted = ("Tokens", "Documents")
    samples_heading = "What it writes"
    samples_note = "and what the model made of it"
    prompt_end = ""
    always_has_samples = True
    data_heading = "Data and tokenizer"
    texts = "documents"
    has_bits_per_byte = True
    tasks = ""

    def purpose(self, run: RunFolder) -> str:
        """`to classify texts into ham and spam`, where the name of the model does not say it."""
        return ""

    def loss_title(self, run: RunFolder) -> str:
        """The title of the loss curve."""
        return "Loss, nats per target token"

    def verdict(self, run: RunFolder) -> str:
        """The score in words, beside what it was before tuning, or the best baseline; "" where
        nothing was scored.
        """
        score, before = main_score(run), score_before(run)
        if score is None or not self.value(score):
            return ""
        told = self.scored(run, score)
        if before is not None and self.value(before):
            told += f"; it was {self.value(before)} before tuning"
        elif score.bits_per_byte:
            told += _beside_baselines(run, score.bits_per_byte)
        return f"{told}."

    def value(self, score: SplitScore) -> str:
        """The number that a score is told by; "" where it is not known."""
        return "" if score.bits_per_byte is None else f"{score.bits_per_byte:.3f}"

    def scored(self, run: RunFolder, score: SplitScore) -> str:
        """The score as the beginning of a sentence."""
        interval = _in_brackets(score.bits_per_byte_interval)
        return (
            f"On held-out text ({score.name}) it needs {self.value(score)} bits per byte{interval}"
        )

    def score_cards(self, run: RunFolder) -> list[Card]:
        """The scores among the headline's numbers."""
        score = main_score(run)
        if score is None:
            return []
        cards = self.loss_cards(score)
        if score.bits_per_byte is not None:
            detail = _span(score.bits_per_byte_interval) or score.name
            cards.insert(0, Card("Bits per byte", f"{score.bits_per_byte:.3f}", detail))
        final = run.scores.likelihood.get(score.name)
        if final and final.perplexity:
            cards.append(Card("Perplexity", f"{final.perplexity:,.2f}", "per token"))
        return cards

    def loss_cards(self, score: SplitScore) -> list[Card]:
        """The loss alone."""
        if score.loss is None:
            return []
        return [Card("Loss", f"{score.loss:.3f}", _span(score.loss_interval) or self.loss_unit)]

    def score_table(self, run: RunFolder) -> Table | None:
        """The losses of every split."""
        before = before_tuning(run)
        tokens, texts = self.counted
        return loss_table(
            run.scores.likelihood,
            unit=self.loss_unit.replace(" per ", "/"),
            tokens=tokens,
            texts=texts,
            before=before.scores.likelihood if before else None,
        )

    def batch_sentence(self, run: RunFolder) -> str:
        """How the batch of a step is cut to the device."""
        return plan_page.sequence_batch(run)

    def commands(self, run: RunFolder) -> list[Command]:
        """What the trained model is for."""
        folder = shlex.quote(str(run.folder))
        if not run.is_tuned:
            return [Command("Generate text", self.use_command(folder))]
        commands = [
            Command(
                "Ask it, and the model from before it was tuned",
                f"{self.use_command(folder)} --beside-base",
            ),
            Command(
                f"Score it{' on tasks' * bool(self.tasks)}, and the model from before",
                f"brimful evaluate {folder}{self.tasks}\nbrimful evaluate {folder} --untuned",
            ),
        ]
        if run.recipe.adapter:
            merge = f"brimful export {folder} --merge"
            commands.append(Command("Write it as one model, adapters merged", merge))
        return commands

    def use_command(self, run: str) -> str:
        """The command that uses the trained model; `run` is quoted."""
        return f'brimful generate {run} --prompt "..."'


class ExamplesReport(ReportKind):
    """A published model, tuned on prompts and answers.

    Attributes:
        samples: What a step learns from, and what is held out.
    """

    counted = ("Learned tokens", "Examples")
    samples = "examples"
    learned = "learned tokens"
    prompt_end = "\n"
    data_heading = "Examples"
    tasks = " code-syntax code-bleu"
    texts = "prompts"

    def loss_title(self, run: RunFolder) -> str:
        if run.recipe.data.loss_on == "all":
            return "Loss, nats per target token"
        return "Loss over answers, nats per token"

    def value(self, score: SplitScore) -> str:
        return "" if score.loss is None else f"{score.loss:.3f}"

    def scored(self, run: RunFolder, score: SplitScore) -> str:
        texts = "examples" if run.recipe.data.loss_on == "all" else "answers"
        return (
            f"The loss over held-out {texts} ({score.name}) is {self.value(score)} nats per"
            f" token{_in_brackets(score.loss_interval)}"
        )

    def score_cards(self, run: RunFolder) -> list[Card]:
        score = main_score(run)
        return self.loss_cards(score) if score else []

    def batch_sentence(self, run: RunFolder) -> str:
        return plan_page.example_batch(run, self.samples)


class PairsReport(ExamplesReport):
    """A published model that has learned to prefer chosen answers.

    Attributes:
        told: What it does with what is held out, before the share of which it does so.
    """

    data_heading = "Pairs"
    loss_unit = "nats per pair"
    samples = "pairs"
    told = "gives the chosen answer the higher reward in"

    def loss_title(self, run: RunFolder) -> str:
        return f"Loss of preferring the chosen answers, {self.loss_unit}"

    def scored(self, run: RunFolder, score: SplitScore) -> str:
        """The share of what is held out that it tells, and the loss."""
        final = run.scores.likelihood.get(score.name)
        accuracy = final.named.get("accuracy") if final else None
        if final is None or accuracy is None:
            return f"Its loss on held-out {self.samples} ({score.name}) is {self.value(score)}"
        interval = ""
        if ends := final.accuracy_interval:
            interval = f" (95 % interval {ends[0]:.0%} to {ends[1]:.0%})"
        return (
            f"Of held-out {self.samples} ({score.name}) it {self.told} {accuracy:.0%}{interval};"
            f" the loss is {self.value(score)}"
        )


class JudgedReport(PairsReport):
    """A published model that has learned to write desired answers."""

    data_heading = "Judged answers"
    loss_unit = "per answer"
    samples = "answers"
    told = "rewards desired ones and no others in"

    def loss_title(self, run: RunFolder) -> str:
        return "Loss of telling desired answers from others"


class RewardedReport(ExamplesReport):
    """A published model that has learned from the rewards of its own answers."""

    data_heading = "Questions"
    loss_unit = "of the reward missed"
    samples = "answers"

    def value(self, score: SplitScore) -> str:
        return "" if score.loss is None else f"{1 - score.loss:.0%}"

    def scored(self, run: RunFolder, score: SplitScore) -> str:
        return f"For held-out questions ({score.name}) it gets {self.value(score)} of the reward"

    def loss_cards(self, score: SplitScore) -> list[Card]:
        told = self.value(score)
        return [Card("Reward", told, "of the most that answers can get")] if told else []

    def loss_title(self, run: RunFolder) -> str:
        return f"Loss of rewarded answers; held out: the share {self.loss_unit}"


class MaskedReport(ReportKind):
    """An encoder, trained to fill in masked tokens."""

    model_name = "masked language model"
    auto_class = "AutoModelForMaskedLM"
    loss_unit = "nats per masked token"
    samples_heading = "What it fills in"
    samples_note = "with a hidden word, what stands there, and the likeliest guesses"
    prompt_end = "\n"
    always_has_samples = False
    has_bits_per_byte = False

    def loss_title(self, run: RunFolder) -> str:
        return "Loss, nats per masked token"

    def value(self, score: SplitScore) -> str:
        return "" if score.loss is None else f"{score.loss:.3f}"

    def scored(self, run: RunFolder, score: SplitScore) -> str:
        """The loss over masked tokens, which is no measure of how likely a text is."""
        return (
            f"On held-out text ({score.name}) the loss is {self.value(score)} {self.loss_unit}"
            f"{_in_brackets(score.loss_interval)}"
        )

    def commands(self, run: RunFolder) -> list[Command]:
        model = shlex.quote(str(run.folder / "model"))
        tune = f"brimful train moderation model={model} data.path=FILE"
        return [Command("Classify texts with it", tune)]

    def use_command(self, run: str) -> str:
        return f"brimful evaluate {run}"


class LabelsReport(ReportKind):
    """A classifier of texts."""

    model_name = "classifier"
    auto_class = "AutoModelForSequenceClassification"
    loss_unit = "nats per text"
    always_has_samples = False
    data_heading = "Texts"
    texts = "texts"
    has_bits_per_byte = False

    def purpose(self, run: RunFolder) -> str:
        split = labels.main_split(run.scores)
        names = run.scores.labels[split].labels if split else run.data.labels.names
        into = f" into {labels.names_in_words(names)}" if names else ""
        return f"to classify texts{into}"

    def loss_title(self, run: RunFolder) -> str:
        is_weighted = run.recipe.labels.class_weights not in (None, "none")
        return f"Loss, nats per text{', weighted in training' if is_weighted else ''}"

    def verdict(self, run: RunFolder) -> str:
        return labels.verdict(run.scores) or self._verdict_so_far(run)

    def _verdict_so_far(self, run: RunFolder) -> str:
        """The metrics of the best evaluation of a run that is still training; "" before the
        first.
        """
        best = best_evaluation(run)
        metrics = quantities.watched(best.values) if best else {}
        if best is None or not metrics:
            return ""
        parts = [
            f"{quantities.WATCHED[key]} {labels.format_of(key)(value)}"
            for key, value in metrics.items()
        ]
        return f"So far, on {best.split} after step {best.step}: {', '.join(parts)}."

    def score_cards(self, run: RunFolder) -> list[Card]:
        """The main metric, the area under precision and recall, and the accuracy."""
        split = labels.main_split(run.scores)
        if split is None:
            return []
        score = run.scores.labels[split]
        metrics = {each.key: each for each in labels.metrics_of(score)}
        shown = [
            metrics[key]
            for key in (labels.main_metric(score), "pr_auc", "accuracy")
            if key in metrics
        ]
        return [_metric_card(each, split) for each in shown]

    def score_table(self, run: RunFolder) -> Table | None:
        """None: the losses stand with the other metrics."""
        return None

    def batch_sentence(self, run: RunFolder) -> str:
        return plan_page.example_batch(run)

    def commands(self, run: RunFolder) -> list[Command]:
        folder = shlex.quote(str(run.folder))
        return [
            Command("Label the texts of a file", self.use_command(folder)),
            Command("Score it again on validation and test", f"brimful evaluate {folder}"),
        ]

    def use_command(self, run: str) -> str:
        return f"brimful predict {run} FILE"


KINDS: dict[str, ReportKind] = {
    "documents": ReportKind(),
    "examples": ExamplesReport(),
    "pairs": PairsReport(),
    "judged": JudgedReport(),
    "rewarded": RewardedReport(),
    "masked": MaskedReport(),
    "labels": LabelsReport(),
}


def report_kind(run: RunFolder) -> ReportKind:
    """Return what reports say of runs of this kind; a kind without an object of its own gets that
    of examples if it tunes a published model, else that of documents.
    """
    default = "examples" if run.kind.answers_prompts else "documents"
    return KINDS.get(run.kind.name, KINDS[default])


def use_command(run: RunFolder) -> str:
    """Return the command that uses the model of a finished run."""
    return report_kind(run).use_command(shlex.quote(name_of(run.folder)))


def _metric_card(metric: labels.LabelMetric, split: str) -> Card:
    """A metric with its interval in one unit: `95 %: 82.6–95.2%`."""
    ends = metric.value.interval_text.replace(" to ", EN_DASH).replace(f"%{EN_DASH}", EN_DASH)
    return Card(
        metric.name.partition(" (")[0], metric.value.text, f"95 %: {ends}" if ends else split
    )


def _beside_baselines(run: RunFolder, bits: float) -> str:
    """`, 31 % less than the best counting baseline (bigram, 2.060)`; "" without baselines."""
    rivals = [(each.bits_per_byte, each.name) for each in baselines(run) if each.bits_per_byte]
    if not rivals:
        return ""
    least, name = min(rivals, key=lambda rival: rival[0])
    percent = f"{abs(bits / least - 1) * 100:.0f} % {'less' if bits < least else 'more'}"
    return f", {percent} than the best counting baseline ({name.lower()}, {least:.3f})"


def _in_brackets(interval: Bounds | None) -> str:
    return f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""


def _span(interval: Bounds | None) -> str:
    return f"95 %: {interval[0]:.3f}{EN_DASH}{interval[1]:.3f}" if interval else ""
