"""What the phases of a chain are expected to take, in lines."""

from collections.abc import Sequence

from brimful.base.text import wrapped
from brimful.base.units import format_bytes, format_duration
from brimful.planning.chain import ChainPhase, total_of


def chain_lines(phases: Sequence[ChainPhase], width: int = 120) -> list[str]:
    """Return a line for each phase: time with its interval, share of all, memory, how often; and
    one for all of them. Nothing without phases.
    """
    if not phases:
        return []
    total = total_of(phases)
    lines = ["The whole chain                   9 of 10 runs           memory"]
    for phase in phases:
        time, of_all = "not known", ""
        if phase.time_s is not None:
            spread = f"{format_duration(phase.time_s.low)} to {format_duration(phase.time_s.high)}"
            time = f"{format_duration(phase.time_s.value):<9} {spread}"
            of_all = f"{phase.time_s.value / total.value:.0%}" if total else ""
        memory = "" if phase.peak_bytes is None else format_bytes(phase.peak_bytes)
        lines.append(f"  {phase.name:<13} {of_all:>4}  {time:<33} {memory}".rstrip())
        lines += wrapped(f"    {phase.about}", width, 4)
    if total is None:
        return [*lines, "  in all        not known, as one of the phases is not"]
    spread = f"{format_duration(total.low)} to {format_duration(total.high)}"
    return [*lines, f"  in all              {format_duration(total.value):<9} {spread}"]
