"""Results as lines for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.base.units import format_duration
from brimful.evaluation.diagnose import Finding

_MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


def score_lines(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A few lines per split: loss, perplexity, bits per byte with intervals, speed, and the counting baselines beside them."""
    lines: list[str] = []
    for name, score in scores.items():
        low, high = score["bits_per_byte_interval"] or (None, None)
        interval = f" (95 % {low:.4f} to {high:.4f})" if low is not None else ""
        lines += [
            f"{name}: {score['tokens']:,} tokens, every one scored once, context {score['context']}, stride {score['stride']}",
            f"  loss {_number(score['loss'])} nats/token, perplexity {_number(score['perplexity'], 2)}, {_number(score['bits_per_byte'])} bits/byte{interval}",
            f"  {score['tokens_per_second']:,.0f} tokens/s, {format_duration(score['seconds'])}",
        ]
        for label, baseline in score.get("baselines", {}).items():
            if isinstance(baseline, Mapping):
                lines.append(f"  {label} baseline: {_number(baseline['loss'])} nats/token, {_number(baseline['bits_per_byte'])} bits/byte")
    return lines


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """One line per finding, its advice below where there is something to do."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.verdict]} {finding.name}: {finding.value}")
        if finding.advice and finding.verdict != "ok":
            lines.append(f"     {finding.advice}")
    return lines


def _number(value: float | None, digits: int = 4) -> str:
    return "not finite" if value is None else f"{value:.{digits}f}"
