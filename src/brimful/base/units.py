"""Numbers as people read them. Values keep their base unit everywhere else; only printing comes through here."""

GIB = 1024**3
MIB = 1024**2


def format_bytes(num_bytes: float) -> str:
    """`1536` -> `1.5 KiB`. Binary units, as memory is counted."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.{1 if abs(size) >= 10 else 2}f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_count(count: float) -> str:
    """`23240000` -> `23.24M`."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.99995 * limit:  # what would round to 1000 of the smaller unit
            return f"{count / limit:.{1 if abs(count) >= 100 * limit else 2}f}{suffix}"
    return f"{count:.0f}"


def format_duration(seconds: float) -> str:
    """`3725` -> `1h 02m`."""
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
