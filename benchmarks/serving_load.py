"""Many clients at a server at the same time: is any starved, and does its memory stay flat?

python benchmarks/serving_load.py RUN                  # 32 clients, 10 minutes; records/serving_load.json
python benchmarks/serving_load.py RUN --minutes 3 --clients 8

`brimful serve RUN` runs in a process of its own. Each client asks for one answer after another:
chats and texts, streamed and whole, of 1 to 48 tokens, one in ten of them left in the middle. A client is
starved if it waits for an answer longer than ten times the median.
"""

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import psutil

from brimful.base.env import runs_folder
from brimful.runs.named import resolve_run
from record import summary, write_record

STARVED = 10
"""Times the median."""
SAMPLE_S = 2.0
MIB = 2**20
PROMPTS = ("What is the capital of France?", "Tell me a story.", "the cat", "1, 2, 3, 4,")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    run = resolve_run(Path(asked.run), runs_folder())
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = [sys.executable, "-m", "brimful", "serve", str(run), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            while "base_url" not in (line := server.stdout.readline()):
                if not line:
                    raise SystemExit("the server ended")
            load = Load(f"http://127.0.0.1:{port}/v1", run.name, asked.minutes * 60)
            asyncio.run(load.run(asked.clients, asked.seed, psutil.Process(server.pid)))
        finally:
            server.terminate()
    values = {
        "model": json.loads((run / "data.json").read_text())["base"]["source"].rpartition("/")[2],
        "clients": asked.clients,
        "minutes": asked.minutes,
        "seed": asked.seed,
        **load.found(asked.clients),
    }
    print(json.dumps(values, indent=2))
    write_record("serving_load", values)


class Load:
    """Clients, and what they met."""

    def __init__(self, address: str, model: str, seconds: float) -> None:
        self._address, self._model, self._seconds = address, model, seconds
        self._waits: list[tuple[int, float]] = []
        self._statuses: Counter[str] = Counter()
        self._tokens, self._memory_mib = 0, list[float]()

    async def run(self, clients: int, seed: int, server: psutil.Process) -> None:
        """Ask until the time is over."""
        end_s = time.monotonic() + self._seconds
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=600, limits=limits) as http:
            await asyncio.gather(
                self._watch(server, end_s),
                *(
                    self._client(http, number, random.Random(f"{seed}-{number}"), end_s)
                    for number in range(clients)
                ),
            )

    async def _watch(self, server: psutil.Process, end_s: float) -> None:
        while time.monotonic() < end_s:
            self._memory_mib.append(server.memory_info().rss / MIB)
            await asyncio.sleep(SAMPLE_S)

    async def _client(
        self, http: httpx2.AsyncClient, number: int, chance: random.Random, end_s: float
    ) -> None:
        while time.monotonic() < end_s:
            started_s = time.monotonic()
            status = await self._ask(http, chance)
            self._statuses[status] += 1
            if status == "200":
                self._waits.append((number, time.monotonic() - started_s))

    async def _ask(self, http: httpx2.AsyncClient, chance: random.Random) -> str:
        fields: dict[str, Any] = {
            "model": self._model,
            "max_tokens": chance.randint(1, 48),
            "temperature": chance.choice((0.0, 0.7, 1.0)),
            "stream": chance.random() < 0.5,
        }
        prompt = chance.choice(PROMPTS)
        path = "/completions"
        if chance.random() < 0.5:
            path, fields["messages"] = "/chat/completions", [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        leaves = chance.random() < 0.1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.random() if leaves else None):
                answer = await http.post(f"{self._address}{path}", json=fields)
                if not fields["stream"] and answer.status_code == 200:
                    self._tokens += answer.json()["usage"]["completion_tokens"]
                if fields["stream"] and not answer.text.endswith("data: [DONE]\n\n"):
                    return "a stream without its end"
                return str(answer.status_code)
        return "left by the client"

    def found(self, clients: int) -> dict[str, Any]:
        """Return what came of it."""
        seconds = [wait for _, wait in self._waits]
        median = statistics.median(seconds)
        answers = Counter(number for number, _ in self._waits)
        third = max(1, len(self._memory_mib) // 3)
        return {
            "answers": len(seconds),
            "statuses": dict(self._statuses),
            "wait_s": summary(seconds),
            "longest_wait_in_medians": max(seconds) / median,
            "starved": sum(wait > STARVED * median for wait in seconds),
            "answers_of_a_client": [
                min(answers[each] for each in range(clients)),
                max(answers.values()),
            ],
            "tokens_per_s_of_whole_answers": self._tokens / self._seconds,
            "memory_mib": {
                "second_third": summary(self._memory_mib[third : 2 * third]),
                "last_third": summary(self._memory_mib[2 * third :]),
            },
        }


if __name__ == "__main__":
    main()
