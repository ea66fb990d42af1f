"""The monitor: one thread beside a run that samples device and machine into the run folder, at a
bounded cost (docs/monitor.md).

Errors do not reach the run: a sensor that fails is dropped and named, a file that cannot be written
ends the monitor.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from brimful.base.rundir import Journal, read_journal, write_journal_atomically
from brimful.base.types import JsonDict
from brimful.base.warning_codes import as_note
from brimful.hardware.device import Device
from brimful.hardware.monitored import FILE_NAME, thinned
from brimful.hardware.sensors import Sensors, sensors_of

SHORTEST_S, LONGEST_S = 1.0, 30.0
"""Shortest and longest time between two samples."""
MOST_COST, MOST_CPU_SHARE = 0.001, 0.002
"""CPU time of a sample over the time to the next one, and over the CPU time of the whole process in
it, which is less where the process gets little of a shared machine: the interval is as long as both
take, up to the longest.
"""
MOST_SAMPLES = 4000
"""Most samples in the file, about 2 MB; then neighbours are merged to half of it and the interval
follows.
"""
FAILURES_BEFORE_DROP = 3
"""Failures in a row after which a sensor is not read again."""
PATIENCE_S = 5.0
"""How long a sensor that hangs is waited for at the end of a session; the thread is then left
behind.
"""


class Monitor:
    """A context manager that samples while it is open.

    Args:
        run_folder: Where `monitor.jsonl` is appended to.
        device: The one that trains.
        say: Called once at the end if monitoring stopped early, with the reason.
        look: Returns the sensors; called in the thread, because a driver may be slow.
    """

    def __init__(
        self,
        run_folder: Path,
        device: Device,
        *,
        say: Callable[[str], None] = lambda message: None,
        look: Callable[[Device, Path], Sensors] = sensors_of,
    ) -> None:
        self._path, self._device, self._say, self._look = run_folder / FILE_NAME, device, say, look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._problem = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._problem = self._problem or f"a sensor did not answer for {PATIENCE_S:.0f} s"
        if self._problem:
            self._say(as_note(f"the monitor stopped early: {self._problem}", "B311"))

    def _run(self) -> None:
        try:
            with _SampleFile(self._path) as log:
                self._watch(log)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"

    def _watch(self, log: "_SampleFile") -> None:
        process_before_s = time.process_time()
        sensors = self._look(self._device, self._path.parent)
        start = {
            "kind": "monitor",
            "time": time.time(),
            "pid": os.getpid(),
            "device": sensors.device,
            "limits": sensors.limits,
        }
        log.append({**start, "absent": sensors.absent})
        sampler = _Sampler(sensors)
        num_samples, is_over, cores, last = 0, False, 1.0, (time.perf_counter(), process_before_s)
        while True:
            before_s = time.thread_time()
            for record in sampler.look():
                log.append(record)
            num_samples += 1
            log.keep_small()
            if is_over:
                break
            now = time.perf_counter(), time.process_time()
            cores, last = (
                (now[1] - last[1]) / max(now[0] - last[0], 1e-6) if num_samples > 1 else cores,
                now,
            )
            is_over = self._stop.wait(
                interval_s(time.thread_time() - before_s, cores, log.shortest_s)
            )
        cost = {
            "samples": num_samples,
            "sampling_cpu_s": time.thread_time(),
            "process_cpu_s": time.process_time() - process_before_s,
        }
        log.append({"kind": "monitor_end", "time": time.time(), **cost})


def interval_s(cost_s: float, cores: float, shortest_s: float = SHORTEST_S) -> float:
    """Seconds to the next sample after one that took `cost_s` of CPU time, where the process uses
    `cores` CPU seconds per second.
    """
    needed_s = cost_s / min(MOST_COST, MOST_CPU_SHARE * max(cores, 1e-6))
    return min(max(shortest_s, needed_s), max(shortest_s, LONGEST_S))


class _Sampler:
    """Calls every reader, and drops those that fail repeatedly."""

    def __init__(self, sensors: Sensors) -> None:
        self._readers = dict(sensors.readers)
        self._failures = dict.fromkeys(self._readers, 0)
        self._last_s: float | None = None

    def look(self) -> list[JsonDict]:
        """Return the `sample` record of now, and one for each sensor that is dropped."""
        now_s = time.perf_counter()
        covers_s = 0.0 if self._last_s is None else _short(now_s - self._last_s)
        self._last_s = now_s
        record: JsonDict = {"kind": "sample", "time": time.time(), "covers_s": covers_s}
        lost = []
        for name, reader in list(self._readers.items()):
            try:
                record |= reader(covers_s)
                self._failures[name] = 0
            except Exception as error:
                self._failures[name] += 1
                if self._failures[name] >= FAILURES_BEFORE_DROP:
                    del self._readers[name]
                    lost.append(
                        {
                            "kind": "sensor_lost",
                            "time": record["time"],
                            "sensor": name,
                            "reason": f"{type(error).__name__}: {error}",
                        }
                    )
        if (reasons := record.pop("throttle_reasons", None)) is not None:
            record["throttled_s"] = dict.fromkeys(reasons, covers_s)
        return [{name: _short(value) for name, value in record.items()}, *lost]


def _short(value: Any) -> Any:
    """Round to six digits after the point, which is more than is measured."""
    return round(value, 6) if isinstance(value, float) else value


class _SampleFile:
    """The file, which never grows beyond MOST_SAMPLES."""

    def __init__(self, path: Path) -> None:
        self._path, self.shortest_s = path, SHORTEST_S
        self._journal = Journal(path)
        self._num_records = sum(1 for _ in read_journal(path))

    def append(self, record: JsonDict) -> None:
        self._journal.append(record)
        self._num_records += 1

    def keep_small(self) -> None:
        """Merge neighbouring samples where there are too many; a reader sees the old file or the
        new one.
        """
        if self._num_records < MOST_SAMPLES:
            return
        kept, resolution_s = thinned(list(read_journal(self._path)), MOST_SAMPLES)
        self._journal.close()
        write_journal_atomically(self._path, kept)
        self._journal = Journal(self._path)
        self._num_records = len(kept)
        self.shortest_s = min(LONGEST_S, max(self.shortest_s, resolution_s / 2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._journal.close()
