"""What a model learns from rewards of its own answers beside other methods, at as many drawn
answers, as a record.

python benchmarks/rewards_learned.py [KEY=VALUE]...     # goes on where it stopped

Nothing is downloaded. With every seed SmolLM2-135M-Instruct is tuned on a few demonstrations (sft),
and from there by GRPO in rounds of answers (grpo), on its own right answers beside the
demonstrations (rft), and on pairs of its answers (dpo): 1,600 answers each to the same questions.
All of `SETTINGS` are tried with the first seed, and the one with most right answers is what the
other seeds have. The record is written anew after every run, and holds the curves of each.
"""

import sys

from rich.console import Console

from brimful.chains.phases import BaseScores, Member
from brimful.chains.round_chain import RoundChain
from brimful.chains.study_members import score_base, train_and_score
from brimful.recipe import load
from brimful.report.comparison.compare import compare
from brimful.report.comparison.results import LOSS
from brimful.selection.answer_journal import AnswerJournal
from preferences_learned import RECIPE, SMALL, beside, others, record

ACCURACY = "unit-conversion-small accuracy"
GRPO = (
    "method=grpo",
    "preference=null",
    "data={path: 'builtin:unit-conversion-small', max_documents: 420, validation: 0.05}",
    "batch.sequences=32",
    "training={steps: 50}",
)
_BETTER = "samples_per_prompt: 4, max_new_tokens: 64, negative_weight"
SETTINGS = {
    "better ones, 3e-4": ("optimizer.learning_rate=3.0e-4", f"rewards={{{_BETTER}: 0}}"),
    "as published, 1e-4": ("optimizer.learning_rate=1.0e-4", f"rewards={{{_BETTER}: 1}}"),
    "worse ones a quarter, 2e-4": (
        "optimizer.learning_rate=2.0e-4",
        f"rewards={{{_BETTER}: 0.25}}",
    ),
}
"""What is tried with the first seed: which answers count, and the learning rate."""


def main() -> None:
    """Do the settings with the first seed, GRPO with the others, then the other methods."""
    learning = Learning([*SMALL, "rft.seeds=[1,2,3]", *sys.argv[1:]])
    for seed in learning.seeds:
        learning.rewarded(seed)
    for seed in learning.seeds:
        learning.supervised(seed)


class Learning:
    """What is trained with each seed, and its record.

    Args:
        changes: Of the recipe whose chain is followed.
    """

    def __init__(self, changes: list[str]) -> None:
        self._console = Console(width=120)
        recipe = load(RECIPE, changes)
        self._chain = chain = RoundChain.begin(recipe, self._console, fresh=False, accept=())
        self.seeds = list(recipe.rft.seeds if recipe.rft else ())
        parts = [each for each in chain.phases if not isinstance(each, BaseScores)]
        self._parts = dict(zip(self.seeds, zip(*[iter(parts)] * 3, strict=True), strict=True))
        self._runs: list[Member] = []
        self._tried: dict[str, Member] = {}
        self._chosen = ""

    def rewarded(self, seed: int) -> None:
        """Tune on demonstrations, and go on with GRPO: in all settings with the first seed."""
        tuned, _, taught = self._parts[seed]
        self._chain.do(tuned)
        self._runs.append(tuned)
        if self._chosen:
            self._train(self._by_grpo(taught, "grpo", self._chosen))
            return
        for number, setting in enumerate(SETTINGS, start=1):
            self._tried[setting] = tried = self._by_grpo(taught, f"grpo-{number}", setting)
            train_and_score(tried, self._console)
        self._chosen = max(self._accuracies, key=self._accuracies.__getitem__)
        self._runs.append(Member("grpo", self._tried[self._chosen].recipe))
        self._record()

    def supervised(self, seed: int) -> None:
        """Draw answers of the tuned model, and learn from them by the other methods."""
        _, drawing, taught = self._parts[seed]
        self._chain.do(drawing)
        self._train(taught)
        for other in others(taught, drawing.folder, self._chain.folder):
            if other.variant == "rft":
                self._train(other)

    def _by_grpo(self, taught: Member, name: str, setting: str) -> Member:
        return beside(taught, name, [*GRPO, *SETTINGS[setting]], self._chain.folder)

    def _train(self, run: Member) -> None:
        train_and_score(run, self._console)
        self._runs.append(run)
        self._record()

    @property
    def _accuracies(self) -> dict[str, float]:
        """Share of right answers by setting, with the first seed."""
        runs = [*self._tried.values()]
        compared = compare([run.folder for run in runs], [*self._tried], without=(LOSS,))
        return {each.name: each.values(ACCURACY)[0] for each in compared.variants}

    def _record(self) -> None:
        runs = [*self._tried.values(), *(run for run in self._runs if run.variant == "grpo")]
        base = score_base(self._chain.done, self._chain.folder, self._console)
        record(
            "rewards_learned",
            self._chain,
            self._runs,
            base,
            settings={name: list(each) for name, each in SETTINGS.items()},
            accuracy_by_setting=self._accuracies,
            chosen=self._chosen,
            grpo=GRPO,
            curves={run.folder.name: curve(run) for run in runs},
        )


def curve(run: Member) -> list[dict[str, float]]:
    """Return what the rounds of a run are watched by, in order."""
    journal, rounds = AnswerJournal(run.folder), list[dict[str, float]]()
    while found := journal.found(len(rounds)):
        rounds.append({name: round(value, 4) for name, value in found["watched"].items()})
    return rounds


if __name__ == "__main__":
    main()
