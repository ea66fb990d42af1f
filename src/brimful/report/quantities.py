"""How numbers and the names of quantities read."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from brimful.base.rundir import finite
from brimful.base.types import Numbers
from brimful.base.units import (
    format_between,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
)
from brimful.planning.plan import Predictions
from brimful.runs.records import RanksRecord

UNITS = ("_bytes_per_s", "_flop_per_s", "_bytes", "_s", "_wh", "_usd")
"""Endings of names that are units."""
ERROR_DIGITS_BELOW = 0.1
"""Relative errors below this are shown with one decimal."""
REWARD = "reward"
"""A value that a method names and that is shown first: where answers are rewarded, the loss is
always about 0 and says nothing.
"""
AMOUNTS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("total_time_s", "billion_tokens_s", "", format_duration),
    ("cost_usd", "billion_tokens_usd", "no price known", format_money),
)
"""Names of time and cost, of the whole run or of a billion tokens; what to say if it is not known;
and how it is written.
"""
WATCHED = {
    "best_f1": "best F1",
    "f1": "F1",
    "macro_f1": "macro-F1",
    "pr_auc": "PR-AUC",
    "accuracy": "accuracy",
}
"""Metrics of evaluations while training, and in comparisons of runs."""
_ABBREVIATED = {"kl": "KL"}
MINUS = "\N{MINUS SIGN}"


def label(key: str) -> str:
    """`peak_memory_bytes` -> `Peak memory`: words, the unit left to the value."""
    return capitalised(words_of(key))


def words_of(key: str) -> str:
    """`peak_memory_bytes` -> `peak memory`."""
    unit = next((unit for unit in UNITS if key.endswith(unit)), "")
    return _ABBREVIATED.get(key, key.removesuffix(unit).replace("_", " ").strip())


def capitalised(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def format_flop_per_s(flop_per_s: float) -> str:
    """`5.9e11` -> `590 GFLOP/s`."""
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if flop_per_s >= limit:
            return f"{flop_per_s / limit:.3g} {prefix}FLOP/s"
    return f"{flop_per_s:.0f} FLOP/s"


def format_step_time(seconds: float) -> str:
    """Three digits, because steps are compared: `0.1234` -> `123 ms`, `1.2` -> `1.20 s`."""
    if seconds >= 59.95:
        return format_duration(seconds)
    value, unit = (seconds, "s") if seconds >= 0.9995 else (seconds * 1000, "ms")
    return f"{value:#.3g}".rstrip(".") + f" {unit}"


def format_quantity(key: str, value: float) -> str:
    """A number in the unit that ends its name."""
    for endings, form in FORMATS.items():
        if key.endswith(endings):
            return form(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


FORMATS: dict[tuple[str, ...], Callable[[float], str]] = {
    ("flop_per_s",): format_flop_per_s,
    ("bytes_per_s",): lambda value: f"{format_bytes(value)}/s",
    ("bytes",): format_bytes,
    ("parameters", "tokens_per_second", "tokens_per_s"): format_count,
    ("step_time_s",): format_step_time,
    ("_s", "seconds"): format_duration,
    ("_wh",): format_energy,
    ("_usd",): format_money,
    ("share", "mfu"): lambda value: f"{value * 100:.3g} %",
}
"""Endings of names and the format of their values; the first that fits counts."""


def format_error(error: float, minus: str = "-") -> str:
    """A relative error with its sign: `+3.2 %`, `-41 %`; what rounds to nothing is `0 %`."""
    digits = 1 if abs(error) < ERROR_DIGITS_BELOW else 0
    percent = round(error * 100, digits)
    return f"{percent:+.{digits}f} %".replace("-", minus) if percent else "0 %"


def format_score(value: float | None, unit: str) -> str:
    """A metric's value in its unit: `45.8%`, `12.3 BLEU`."""
    if value is None:
        return "not known"
    return f"{value:.1%}" if unit == "share" else f"{value:.4g} {unit}".rstrip()


def format_value(key: str, value: object) -> str:
    """Any JSON value as a person reads it; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (known := finite(value)) is not None:
        return format_quantity(key, known)
    if isinstance(value, list):
        return ", ".join(format_value(key, part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}: {format_value(str(name), part)}" for name, part in value.items())
    return str(value)


def format_number(value: object, digits: int = 0) -> str:
    """`1234.5` -> `1,234.50`; empty for what is no number."""
    known = finite(value)
    return "" if known is None else f"{known:,.{digits}f}"


def format_micro_batches(sizes: object) -> str:
    """`[8, 8, 3]` -> `2 x 8 + 3`; "" for what is no list."""
    known = sizes if isinstance(sizes, list | tuple) else ()
    counted = ((size, len(list(group))) for size, group in groupby(known))
    return " + ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in counted)


def memory_of(used_bytes: float, usable_bytes: float) -> str:
    """`8.39 of 14.6 GiB`."""
    used, usable = format_bytes(used_bytes), format_bytes(usable_bytes)
    number, _, unit = used.rpartition(" ")
    return f"{number if usable.endswith(f' {unit}') else used} of {usable}"


def time_and_cost(predicted: Predictions, *, intervals: bool) -> str:
    """`, 4m 15s (1m 50s to 10m 24s), no price known`; empty where no time is predicted."""
    is_billion = "billion_tokens_s" in predicted
    if not is_billion and "total_time_s" not in predicted:
        return ""
    known, unknown = [], []
    for whole, billion, none_known, form in AMOUNTS:
        entry = predicted.get(whole) or predicted.get(billion)
        if entry is None:
            unknown.append(none_known)
            continue
        between = format_between(form, entry.low, entry.high) if intervals else ""
        known.append(form(entry.value) + f" ({between})" * bool(between))
    amounts = ", ".join(known) + " for a billion tokens" * is_billion
    return "".join(f", {each}" for each in (amounts, *unknown) if each)


def ranks_text(record: RanksRecord) -> str:
    """Return `slowest 2 (1.2 s a step), communication 12 %, memory up to 3.1 GiB (rank 0)`."""
    slowest = record.slowest
    parts = [
        f"slowest {slowest.rank} ({format_step_time(slowest.computing_s)} a step)",
        f"communication {record.communication_share:.0%}",
    ]
    known = [each for each in record.ranks if each.memory_bytes is not None]
    if known:
        fullest = max(known, key=lambda each: each.memory_bytes or 0)
        memory = format_bytes(fullest.memory_bytes or 0)
        parts.append(f"memory up to {memory} (rank {fullest.rank})")
    return ", ".join(parts)


def watched(values: Mapping[str, object]) -> Numbers:
    """Return the metrics of an evaluation while training, by key. Of F1 it is that at the best
    threshold, else of the positive label, else the mean of all labels'.
    """
    known = {key: finite(values.get(key)) for key in WATCHED}
    for better, other in (("best_f1", "f1"), ("best_f1", "macro_f1"), ("f1", "macro_f1")):
        if known[better] is not None:
            known[other] = None
    return {key: value for key, value in known.items() if value is not None}
