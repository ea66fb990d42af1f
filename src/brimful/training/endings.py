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
REFUSAL_S = 60.0
"""How long a rank that is refused before the meeting stays for others to come and learn it."""
_KEY, _COME = "brimful ended", "brimful came"
_LOOK_EVERY_S = 0.05


@contextmanager
def ends_together(rank: int, size: int) -> Iterator[Any]:
    """Yield the store at which the ranks meet. If this rank ends with an error that another rank
    has told or tells, end without a word and with the same exit code.

    Raises:
        RanksParted: nobody came to the meeting point.
        SystemExit: a rank was refused before it came; with its exit code.
    """
    store = _store(rank, size, MEETING_S)
    _meet(store, rank, size, MEETING_S)
    try:
        yield store
    except BrimfulError as error:
        error.is_known_to_ranks = True
        _stay_until_told()
        is_lost = isinstance(error, RanksParted)
        told = _told(store, OTHERS_WORD_S * is_lost + FIRST_WORD_S * (rank > 0))
        if told is None:
            _tell(store, rank, error.exit_code)
            time.sleep(OTHERS_WORD_S * _is_holder(rank))
            if not (is_lost and was_started_by_brimful()):
                raise
            told = error.exit_code  # the launcher saw which process ended, and tells it
        raise SystemExit(told) from None
    except Exception:
        _tell(store, rank, 1)
        raise


def tell_refusal(error: BrimfulError, rank: int, size: int) -> None:
    """Let the other ranks end with the exit code of this one, which was refused before it met them.
    Rank 0 stays for them where it holds the store.
    """
    with suppress(RanksParted, SystemExit):
        store = _store(rank, size, REFUSAL_S)
        _tell(store, rank, error.exit_code)
        _meet(store, rank, size, REFUSAL_S)


def _is_holder(rank: int) -> bool:
    return rank == 0 and not meeting_point()[2]


def _meet(store: Any, rank: int, size: int, wait_s: float) -> None:
    """Wait for all ranks; raises SystemExit if one tells that the run ends, and where this one
    holds the store once all can learn it.
    """
    told, until_s = None, time.monotonic() + wait_s
    with suppress(RuntimeError):  # the store is gone, which the ranks will notice as they join
        store.add(_COME, 1)
        while store.add(_COME, 0) < size and time.monotonic() < until_s:
            if _heard(store) is not None and not _is_holder(rank):
                break
            time.sleep(_LOOK_EVERY_S)
        told = _heard(store)
    if told is not None:
        time.sleep(OTHERS_WORD_S * _is_holder(rank))
        raise SystemExit(told)


def _stay_until_told() -> None:
    """Ignore SIGTERM from now on: a launcher that saw another rank end sends it at once, and this
    one has to tell why. It lasts some seconds; launchers wait longer.
    """
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _store(rank: int, size: int, wait_s: float) -> Any:
    host, port, is_held, restarts = meeting_point()
    try:
        store = TCPStore(
            host,
            port,
            world_size=size,
            is_master=rank == 0 and not is_held,
            timeout=timedelta(seconds=wait_s),
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
            told = _heard(store)
        except RuntimeError:
            return None
        if told is not None or time.monotonic() >= until_s:
            return told
        time.sleep(_LOOK_EVERY_S)


def _heard(store: Any) -> int | None:
    return int(json.loads(store.get(_KEY))["exit_code"]) if store.check([_KEY]) else None
