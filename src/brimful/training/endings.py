"""How the processes of one run end: with one message, from one of them, and one exit code."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from brimful.base.env import meeting_point, was_started_by_brimful
from brimful.base.errors import BrimfulError, RanksParted
from brimful.base.text import reason_of

MEETING_S = 300.0
"""How long ranks wait for each other at the start."""
FIRST_WORD_S = 3.0
"""How long a later rank lets the first one tell why the run ends."""
OTHERS_WORD_S = 3.0
"""How long a rank that lost another one waits to learn why; and how long rank 0 stays for others to
learn it, where it holds the store.
"""
_KEY = "brimful ended"


@contextmanager
def ends_together(rank: int, size: int) -> Iterator[Any]:
    """Yield the store at which the ranks meet. If this rank ends with an error that another rank
    has told or tells, end without a word and with the same exit code.

    Raises:
        RanksParted: nobody came to the meeting point.
    """
    is_holder = rank == 0 and not meeting_point()[2]
    store = _store(rank, size)
    try:
        yield store
    except BrimfulError as error:
        _stay_until_told()
        is_lost = isinstance(error, RanksParted)
        told = _told(store, OTHERS_WORD_S * is_lost + FIRST_WORD_S * (rank > 0))
        if told is None:
            _tell(store, rank, error.exit_code)
            time.sleep(OTHERS_WORD_S * is_holder)
            if not (is_lost and was_started_by_brimful()):
                raise
            told = error.exit_code  # the launcher saw which process ended, and tells it
        raise SystemExit(told) from None
    except Exception:
        _tell(store, rank, 1)
        raise


def _stay_until_told() -> None:
    """Ignore SIGTERM from now on: a launcher that saw another rank end sends it at once, and this
    one has to tell why. It lasts some seconds; launchers wait longer.
    """
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _store(rank: int, size: int) -> Any:
    host, port, is_held, restarts = meeting_point()
    try:
        store = TCPStore(
            host,
            port,
            world_size=size,
            is_master=rank == 0 and not is_held,
            timeout=timedelta(seconds=MEETING_S),
            wait_for_workers=False,
            multi_tenant=True,
        )
        return PrefixStore(f"brimful {restarts}", store)
    except (RuntimeError, ValueError) as error:
        reason = reason_of(error)[:200]
        raise RanksParted(
            f"rank {rank} of {size} cannot reach the others at {host}:{port} ({reason}). Check"
            " that rank 0 was started and that machines reach each other (MASTER_ADDR,"
            " MASTER_PORT)."
        ) from error


def _tell(store: Any, rank: int, exit_code: int) -> None:
    try:
        store.set(_KEY, json.dumps({"rank": rank, "exit_code": exit_code}))
    except RuntimeError:  # it ended with the rank that held it
        return


def _told(store: Any, wait_s: float) -> int | None:
    """Return the exit code of the rank that told why the run ends; None if none did."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            if store.check([_KEY]):
                return int(json.loads(store.get(_KEY))["exit_code"])
        except RuntimeError:
            return None
        if time.monotonic() >= until_s:
            return None
        time.sleep(0.05)
