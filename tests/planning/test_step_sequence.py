"""Steps of different lengths one after another, from traces of two steps each."""

from dataclasses import replace

from fixture_types import Refuses

from brimful.integrations.other_tools.stand_ins import ForeignStep, LossChain, TrainerQuirks
from brimful.model.description import config_values
from brimful.planning.block_rows import Irregular
from brimful.planning.step import canonical
from brimful.planning.step_sequence import sequence_of_steps
from brimful.planning.trace import Trace
from brimful.recipe import ModelRecipe
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training

MODEL = config_values(ModelRecipe(layers=2, heads=2, width=32), vocabulary=128, context=64)
SPEC = ForeignStep(
    config_json=canonical(MODEL),
    sequence_length=32,
    weights="bf16",
    chain=LossChain(),
    optimizer="foreach",
    accumulates=False,
)


def _trace(spec: ForeignStep) -> Trace:
    return record_training(spec, config_of(spec), 2)


def test_steps_of_different_lengths_follow_one_another() -> None:
    keeps = replace(SPEC, quirks=TrainerQuirks(keeps_outputs=True))
    short, long = (_trace(replace(keeps, sequence_length=length)) for length in (32, 64))
    run = sequence_of_steps([short, long, short])

    assert run.live_E().min() >= 0
    assert run.live_E().max() == sequence_of_steps([short, long]).live_E().max()
    assert run.live_E().max() > sequence_of_steps([short, short]).live_E().max()


def test_equal_steps_need_no_more_the_longer_they_run() -> None:
    trace = _trace(SPEC)

    assert sequence_of_steps([trace] * 5).live_E().max() == trace.live_E().max()


def test_steps_with_other_events_cannot_follow_one_another(refuses: Refuses) -> None:
    with refuses(Irregular):
        sequence_of_steps([_trace(SPEC), _trace(replace(SPEC, recompute=True))])
