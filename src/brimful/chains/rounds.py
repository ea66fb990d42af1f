"""Rejection-sampling fine-tuning in rounds: tune on demonstrations, sample, verify, tune again, and
compare everything in one table.

Yuan et al. 2023 (arXiv 2308.01825): every round trains the same base anew, on the demonstrations
and on all distinct correct answers that were sampled so far. Deviation: samples come from the
student of the round before, or from a teacher in all rounds.
"""

from pathlib import Path
from typing import Unpack

from rich.console import Console

from brimful.base.errors import DataError
from brimful.chains.measured_phases import phases_beside_measured
from brimful.chains.opening import RunOptions
from brimful.chains.phases import RoundSampling
from brimful.chains.ranks import Jobs
from brimful.chains.round_chain import RoundChain
from brimful.chains.round_drawing import DRAWING
from brimful.chains.study_folder import publish
from brimful.chains.study_members import TRAINING, score_base, train_member
from brimful.recipe import BASE, Recipe
from brimful.report.comparison.compare import compare
from brimful.report.comparison.results import LOSS

ROUNDS: Jobs = {**TRAINING, **DRAWING}
"""What ranks after the first do while the first one goes through rounds."""


def run_rounds(recipe: Recipe, console: Console, **options: Unpack[RunOptions]) -> Path:
    """Run the whole chain with every seed: tune on demonstrations, then in rounds sample and tune
    on what was kept; score all, compare, write the page. Return the path of the page.

    The same command again continues where it stopped. The base is scored before anything is
    sampled; if nothing that is sampled can be kept, the table has what there is until then.

    Raises:
        BrimfulError: as sampling, training and evaluation do.
    """
    chain = RoundChain.begin(recipe, console, **options)
    try:
        for phase in chain.phases:
            chain.do(phase)
    except DataError:
        if chain.done:
            _publish(chain, console)
        raise
    return _publish(chain, console)


def _publish(chain: RoundChain, console: Console) -> Path:
    """Compare the base and what is done, and return the page."""
    done = chain.done
    base = score_base(done, chain.folder, console, chain.world)
    runs = [base, *(member.folder for member in done)]
    variants = [BASE, *(member.variant for member in done)]
    # Losses cannot be compared: each variant holds out validation examples of its own.
    comparison = compare(runs, variants, without=(LOSS,))
    phases = phases_beside_measured(chain.recipe, base, done, chain.drawn)
    facts = {"what": chain.descriptions(), "rounds": chain.drawn, "phases": phases}
    return publish(chain.recipe, chain.folder, comparison, console, facts=facts)


def sample(recipe: Recipe, console: Console, **options: Unpack[RunOptions]) -> Path:
    """Draw the samples of the first round and return their folder. A student that draws them is
    tuned on the demonstrations before.

    Raises:
        BrimfulError: as sampling and training do.
    """
    chain = RoundChain.begin(recipe, console, **options)
    drawing = next(phase for phase in chain.phases if isinstance(phase, RoundSampling))
    if drawing.student is not None:
        chain.note_examples(drawing.student)
        train_member(drawing.student, console, **options)
    chain.sample(drawing)
    return drawing.folder
