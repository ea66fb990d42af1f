"""The plan of a run, as far as plan.json can be read."""

import math

from brimful.base.rundir import finite
from brimful.base.types import Bounds, Json
from brimful.planning.plan import Plan, Prediction, Predictions
from brimful.runs.parsing import mapping, parse, parse_value


def read_plan(values: Json) -> Plan | None:
    """Return the plan of which plan.json holds at least a part, None where it holds nothing.

    What is missing or damaged is empty. Use `planning.plan.plan_from_json` to train by a plan: it
    refuses such a file.
    """
    if not values:
        return None
    earlier: dict[str, object] = {}
    if "fused_optimizer" in values:
        earlier["optimizer"] = "fused" if values["fused_optimizer"] else "for_loop"
    predicted = mapping(values.get("predicted"))
    sizes = parse_value(tuple[int, ...], values.get("micro_batches")) or _micro_batches(values)
    parameters = finite(values.get("parameters")) or finite(predicted.get("parameters")) or 0
    return parse(
        Plan,
        earlier | dict(values),
        predicted=_predictions(values, predicted),
        micro_batches=sizes,
        parameters=int(parameters),
    )


def interval_of(prediction: Prediction) -> Bounds | None:
    """Return the interval of a prediction, None where the file had none."""
    return None if math.isnan(prediction.low) else (prediction.low, prediction.high)


def _predictions(values: Json, predicted: Json) -> Predictions:
    """Return the predictions whose value is a number; an interval that is missing is not a number
    (NaN).
    """
    intervals, basis = mapping(values.get("predicted_interval")), mapping(values.get("basis"))
    predictions = {}
    for name, value in predicted.items():
        number = finite(value)
        if number is not None and name != "parameters":
            low, high = parse_value(Bounds, intervals.get(name)) or (math.nan, math.nan)
            predictions[name] = Prediction(number, low, high, str(basis.get(name, "")))
    return predictions


def _micro_batches(values: Json) -> tuple[int, ...]:
    """Return the micro-batches of a plan that names only their size and number."""
    size, count, rest = (
        int(finite(values.get(name)) or 0) for name in ("micro_batch", "accumulation", "remainder")
    )
    return (size,) * min(count, 2**20) + (rest,) * bool(rest) if size > 0 else ()
