"""Records of a journal that several tests write, and a clock that stands still."""

from typing import Any

from brimful.base.types import JsonDict

NOW = 2_000_000_000.0
"""Unix seconds at which watched runs begin."""
START = {
    "kind": "start",
    "step": 0,
    "total_steps": 100,
    "tokens_per_step": 4096,
    "run": "quickstart",
    "resumed": False,
}


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def step(number: int, **changes: Any) -> JsonDict:
    """A step of a run that is shown while it trains."""
    record = {
        "kind": "step",
        "step": number,
        "loss": 4.0,
        "learning_rate": 1e-3,
        "tokens_per_second": 12345.0,
        "step_time_s": 0.5,
    }
    return record | {"memory_bytes": 2 * 1024**3, "skipped": 0} | changes


def watched_step(number: int, **changes: Any) -> JsonDict:
    """A step of a watched run, which makes two in a second."""
    return step(number, tokens_per_second=8192.0, time=NOW + number * 0.5) | changes


def measured_step(number: int, time: float, **changes: Any) -> JsonDict:
    """A step whose measurements are looked at."""
    return {
        "kind": "step",
        "step": number,
        "loss": 3.0,
        "step_time_s": 0.5,
        "memory_bytes": 1000,
        "tokens_per_second": 10.0,
        "time": time,
    } | changes


def start(at: int, total: int = 4) -> JsonDict:
    """The start of a session of a short run."""
    return {"kind": "start", "step": at, "total_steps": total}
