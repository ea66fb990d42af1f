"""Names of optimizers."""

from transformers.training_args import OptimizerNames

from brimful.integrations.other_tools.optimizers import BY_NAME, IN_TORCH, KEPT, OWN
from brimful.rehearsal.optimizers import FP32_VARIANTS


def test_every_name_is_one_of_transformers() -> None:
    known = {each.value for each in OptimizerNames} | {"paged_adamw"}

    assert {*BY_NAME} <= known


def test_every_variant_is_known_to_the_tracer() -> None:
    assert {*BY_NAME.values()} <= {*KEPT, *IN_TORCH, *FP32_VARIANTS}
    assert {*OWN} <= {*KEPT}
