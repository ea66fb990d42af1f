"""Answers judged while others are still being written."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from brimful.base.errors import RequestError
from brimful.base.types import Json
from brimful.verify.judge import judge
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict, Verifier

JUDGED_TOGETHER = 64
"""Programs that wait for the sandbox are sent there so many at a time."""

_Entry = tuple[Any, str, Any]
"""What comes back with a verdict, an answer and its reference."""


class Judging:
    """Verdicts: of texts at once, of programs beside generation, so that the sandbox is not waited
    for.
    """

    def __init__(self, verifier: Verifier, sandbox: Sandbox | None) -> None:
        self._verifier, self._sandbox = verifier, sandbox
        self._waiting: list[_Entry] = []
        self._pool = ThreadPoolExecutor(1)
        self._judged: list[tuple[list[_Entry], Future[list[Verdict | None]]]] = []
        self._unknown: list[_Entry] = []

    def __enter__(self) -> "Judging":
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def put(self, item: Any, answer: str, reference: Json | str) -> None:
        """An answer to judge; `item` comes back with its verdict."""
        self._waiting.append((item, answer, reference))

    def ready(self) -> list[tuple[Any, Verdict]]:
        """What is known by now."""
        if self._sandbox is None:
            batch, self._waiting = self._waiting, []
            return self._sorted(batch, self._verdicts(batch))
        if len(self._waiting) >= JUDGED_TOGETHER or (self._waiting and not self._judged):
            self._send()
        done = [entry for entry in self._judged if entry[1].done()]
        self._judged = [entry for entry in self._judged if not entry[1].done()]
        return [pair for batch, future in done for pair in self._sorted(batch, future.result())]

    def rest(self) -> list[tuple[Any, Verdict]]:
        """What was still missing; programs that the machine was too busy for are judged again, now
        that nothing is generated.

        Raises:
            RequestError: it is too busy still.
        """
        self._send()
        found = [
            pair for batch, future in self._judged for pair in self._sorted(batch, future.result())
        ]
        again, self._unknown, self._judged = self._unknown, [], []
        found += self._sorted(again, self._verdicts(again))
        if self._unknown:
            raise RequestError(
                f"the machine is too busy to judge {len(self._unknown)} programs. All other samples"
                " are kept: run the same command again later."
            )
        return found

    def _send(self) -> None:
        if self._waiting:
            batch, self._waiting = self._waiting, []
            self._judged.append((batch, self._pool.submit(self._verdicts, batch)))

    def _verdicts(self, batch: list[_Entry]) -> list[Verdict | None]:
        return judge(
            self._verifier,
            [answer for _, answer, _ in batch],
            [reference for _, _, reference in batch],
            self._sandbox,
        )

    def _sorted(
        self, batch: list[_Entry], verdicts: list[Verdict | None]
    ) -> list[tuple[Any, Verdict]]:
        self._unknown += [
            entry for entry, verdict in zip(batch, verdicts, strict=True) if verdict is None
        ]
        return [
            (item, verdict)
            for (item, _, _), verdict in zip(batch, verdicts, strict=True)
            if verdict is not None
        ]
