"""Numbers as text for people. Everywhere else values keep their base unit."""

import re
from collections.abc import Callable

GIB = 1024**3
MIB = 1024**2
SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)"


def format_bytes(num_bytes: float) -> str:
    """`1536` -> `1.5 KiB`. Binary units, as memory is counted."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            digits = 1 if abs(size) >= 10 else 2
            return f"{size:.{0 if unit == 'B' else digits}f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_count(count: float) -> str:
    """`23240000` -> `23.24M`."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.99995 * limit:  # what would round to 1000 of the smaller unit
            return f"{count / limit:.{1 if abs(count) >= 100 * limit else 2}f}{suffix}"
    return f"{count:.0f}"


def format_duration(seconds: float) -> str:
    """`3725` -> `1h 02m`; an impossibly long time (of a damaged record) in powers of ten."""
    if abs(seconds) > 1e12:
        return f"{seconds:.0e} s"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest_s:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def format_money(usd: float) -> str:
    """`1234.5` -> `$1,234`; cents below a thousand."""
    if usd and abs(usd) < 0.005:
        return "< $0.01"
    return f"${usd:,.0f}" if abs(usd) >= 1000 else f"${usd:.2f}"


def format_energy(energy_wh: float) -> str:
    """`1234.5` watt hours -> `1.23 kWh`."""
    for unit in ("Wh", "kWh", "MWh"):
        if abs(energy_wh) < 999.5:
            return f"{energy_wh:.3g} {unit}"
        energy_wh /= 1000
    return f"{energy_wh:,.3g} GWh"


def format_between(form: Callable[[float], str], low: float, high: float) -> str:
    """`711.4 to 887.3 MiB`: an interval with its unit once; empty where both ends read the same,
    as then there is no interval to show.
    """
    first, last = form(low), form(high)
    if first == last:
        return ""
    number, _, unit = first.rpartition(" ")
    if number[-1:].isdigit() and last.endswith(f" {unit}"):
        first = number
    return f"{first} to {last}"


def format_named(name: str, value: float) -> str:
    """A value in the unit its name ends with: `peak_memory_bytes`, `step_time_s`, `tokens_per_s`,
    `energy_wh`, `cost_usd`, `mfu`.
    """
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return format_duration(value)
    if name.endswith("_wh"):
        return format_energy(value)
    if name.endswith("_usd"):
        return format_money(value)
    return f"{value:.1%}" if name == "mfu" else format_count(value)


def parse_duration(text: str) -> float:
    """`90m`, `3h`, `1.5d`, `1h30m` -> seconds.

    Raises:
        ValueError: not a time above zero.
    """
    if re.fullmatch(rf"(?:{_PART}\s*)+", text.strip(), re.IGNORECASE):
        seconds = sum(
            float(number) * SECONDS[unit.lower()]
            for number, unit in re.findall(_PART, text, re.IGNORECASE)
        )
        if seconds > 0:
            return seconds
    raise ValueError(
        f"{text!r} is not a time above zero. Write a number with its unit (s, m, h or d), such as"
        " 90m, 3h, 1.5d or 1h30m."
    )
