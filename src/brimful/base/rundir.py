"""Files and folders that survive a crash: atomic writes, the one-writer lease, the append-only
journal.

A run folder has one writer. The lease is a file made with O_CREAT|O_EXCL that says who holds it; a
holder that is provably gone (same machine, other boot or dead process) is replaced, any other is
respected.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import socket
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from brimful.base.errors import RunFolderError
from brimful.base.kept_values import read_own
from brimful.base.strict_json import load_json
from brimful.base.types import JsonDict

SCHEMA_VERSION = 1
CHECKSUM = "checksum"
"""Key under which a JSON file keeps its own name and the checksum of its other values."""
BEING_WRITTEN_S = 10
"""A lease without content that is younger is taken for one that is being written, and waited for:
whoever wrote it may have been killed.
"""
LEASE_STALE_AFTER_S = 15 * 60
"""A lease of another machine without a heartbeat for this long is taken over; the holder renews it
at every log line.
"""


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable. A no-op where folders cannot be opened (Windows)."""
    if os.name != "nt":
        _fsync(folder, os.O_RDONLY)


def fsync_files(folder: Path) -> None:
    """Make the files of a folder durable that a library wrote into it, and their names."""
    for path in folder.iterdir():
        if path.is_file():
            _fsync(path, os.O_RDWR)
    fsync_folder(folder)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, even after a power failure.

    Raises:
        RunFolderError: no space, no permission; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _write_through(temporary, path, text)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_file(path: Path) -> bool:
    """Remove a file; return whether it was there."""
    was_there = path.exists()
    path.unlink(missing_ok=True)
    return was_there


def require_writable(folder: Path) -> None:
    """Raise RunFolderError where no file can be written in a folder, before work is wasted."""
    as_this_user = os.access in os.supports_effective_ids
    if not os.access(folder, os.W_OK, effective_ids=as_this_user):
        raise RunFolderError(
            f"{folder} cannot be written, and what this makes is kept there. Fix its permissions,"
            " or copy the folder to another place and name the copy."
        )


def _write_through(temporary: Path, path: Path, text: str) -> None:
    with open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(path.parent)


def _not_written(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be written: {error}. Free space or fix the permissions and run the same"
        " command again."
    )


def write_json_atomically(path: Path, value: object, *, with_checksum: bool = False) -> None:
    """Write indented JSON as `write_text_atomically` does, NaN refused. With a checksum of an
    object's values `read_json` finds damage, and that another file was put in its place.
    """
    if with_checksum and isinstance(value, dict):
        value = add_checksum(value, path.name)
    write_text_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def add_checksum(values: JsonDict, file_name: str) -> JsonDict:
    """Return a JSON object with a checksum of its other values and of the name of the file that
    will hold it, by which `parse_json` finds damage.
    """
    plain = {key: value for key, value in values.items() if key != CHECKSUM}
    # As it will be read: keys become text and tuples lists.
    return {**plain, CHECKSUM: _checksum_of(json.loads(json.dumps(plain)), file_name)}


def _checksum_of(values: JsonDict, file_name: str) -> str:
    return f"{file_name} {checksum_of(file_name + _plain_text(values))}"


def _plain_text(values: JsonDict) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def checksum_of(text: str) -> str:
    """Return 16 hexadecimal digits by which a text is told from a damaged one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_json(text: str | bytes, file_name: str = "") -> JsonDict:
    """Return a JSON object, without the checksum that it may carry.

    Args:
        file_name: Name of the file that holds it; empty where it may have been renamed.

    Raises:
        ValueError: no JSON object, values that differ from their checksum, or those of another
            file.
    """
    value: JsonDict = load_json(text)
    if not isinstance(value, dict):
        raise ValueError("it is no object")  # noqa: TRY004
    if CHECKSUM not in value:
        if any(map(re.compile(rf"{re.escape(file_name)} [0-9a-f]{{16}}").fullmatch, _texts(value))):
            raise ValueError(f"its entry {CHECKSUM!r} has another name. Restore the file")
        return value
    noted = str(value.pop(CHECKSUM))
    if noted == checksum_of(_plain_text(value)):
        return value  # of an earlier version, whose checksums knew no name
    own_name = noted.rpartition(" ")[0]
    if noted != _checksum_of(value, own_name):
        raise ValueError(
            "its values differ from its checksum, so it is damaged or was edited."
            f" Restore the file; if you changed it on purpose, remove its entry {CHECKSUM!r}"
        )
    if file_name and own_name != file_name:
        raise ValueError(f"it holds what was written as {own_name!r}. Restore the file")
    return value


def _texts(value: JsonDict) -> list[str]:
    return [each for each in value.values() if isinstance(each, str)]


def read_json(path: Path, *, is_cached: bool = False) -> JsonDict:
    """The JSON object in `path`, without the checksum that it may carry.

    Args:
        is_cached: It can be made again, and is not read where another user could have written it.

    Raises:
        RunFolderError: missing, unreadable, no JSON object, different from its checksum, or written
            as another file.
    """
    try:
        return parse_json(read_own(path) if is_cached else path.read_bytes(), path.name)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read as JSON: {error}") from error


def _boot_id() -> str:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    if boot_id.exists():
        return boot_id.read_text().strip()
    import psutil  # noqa: PLC0415 - many read files here, few take a lease

    return str(round(psutil.boot_time()))


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """The process that a lease names; what an incomplete or damaged lease does not say is None or
    "".

    Attributes:
        boot_id: Identity of its machine's boot.
        process_started: When the process started, in Unix seconds.
        since: When it took the lease, in local time.
        token: A random text, by which it recognises its own lease.
    """

    host: str = ""
    boot_id: str = ""
    pid: int | None = None
    process_started: float | None = None
    since: str = ""
    token: str = ""

    @property
    def is_here(self) -> bool:
        """Return whether the process belongs to this machine."""
        return self.host == socket.gethostname()

    def is_alive(self, heartbeat_age_s: float) -> bool:
        """Return whether the process still runs, as far as that is known.

        Args:
            heartbeat_age_s: How long ago the lease was renewed, which is all that is known of a
                process on another machine.
        """
        if not self.is_here:
            return self != LeaseHolder() and heartbeat_age_s < LEASE_STALE_AFTER_S
        if self.boot_id != _boot_id() or self.pid is None or self.process_started is None:
            return False
        import psutil  # noqa: PLC0415 - as in _boot_id

        try:
            process = psutil.Process(self.pid)
            started, is_zombie = process.create_time(), process.status() == psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError):
            return False
        return not is_zombie and abs(started - self.process_started) < 1


class Lease:
    """The right to write into one run folder, held as long as the object is open.

    Raises (from `acquire` and `check`):
        RunFolderError: somebody else holds the folder, or took it over.
    """

    FILE_NAME = "writer.lock"

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self._token = token

    @property
    def token(self) -> str:
        """A random text in the lease, by which it is recognised."""
        return self._token

    @classmethod
    def acquire(cls, run_folder: Path) -> Self:
        import psutil  # noqa: PLC0415 - as in _boot_id

        path = run_folder / cls.FILE_NAME
        token = uuid.uuid4().hex
        holder = LeaseHolder(
            host=socket.gethostname(),
            boot_id=_boot_id(),
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            token=token,
        )
        give_up_s = time.monotonic() + BEING_WRITTEN_S + 1
        while time.monotonic() < give_up_s:
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                cls._remove_if_abandoned(path)
                continue
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(holder), file)
            return cls(path, token)
        raise RunFolderError(
            f"{run_folder} could not be locked: {path} was empty or changed for"
            f" {BEING_WRITTEN_S} s. Other processes start this run all the time. Stop them and run"
            " the same command again."
        )

    @staticmethod
    def _remove_if_abandoned(path: Path) -> None:
        try:
            age_s = time.time() - path.stat().st_mtime
            holder = _holder_of(path)
        except FileNotFoundError:
            return
        if holder == LeaseHolder() and 0 <= age_s < BEING_WRITTEN_S:
            time.sleep(0.2)
            return
        if holder.is_alive(age_s):
            raise RunFolderError(
                f"{path.parent} is being written by process {holder.pid} on {holder.host} since"
                f" {holder.since}. A run folder has one writer: wait for it, stop it, or choose"
                " another name with run.name=NAME."
            )
        abandoned = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            os.rename(path, abandoned)
        except FileNotFoundError:
            return
        abandoned.unlink(missing_ok=True)

    def renew(self) -> None:
        """Heartbeat, seen by other machines as the age of the file."""
        self.check()
        os.utime(self._path)

    def check(self) -> None:
        """Raise RunFolderError if another process took the folder over."""
        try:
            token = _holder_of(self._path).token
        except OSError:
            token = ""
        if token != self._token:
            raise RunFolderError(
                f"{self._path.parent} was taken over by another process; this one stops without"
                " writing."
            )

    def release(self) -> None:
        try:
            self.check()
        except RunFolderError:
            return
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def writer_of(run_folder: Path) -> LeaseHolder | None:
    """Return the process that holds the lease of a run folder; None without a lease, and where the
    process is known to be gone.
    """
    path = run_folder / Lease.FILE_NAME
    try:
        holder, age_s = _holder_of(path), time.time() - path.stat().st_mtime
    except OSError:
        return None
    return holder if holder.is_alive(age_s) else None


def _holder_of(path: Path) -> LeaseHolder:
    """Return what a lease says; nothing is known of the holder of a damaged one."""
    try:
        values = json.loads(path.read_bytes())
    except ValueError:
        return LeaseHolder()
    if not isinstance(values, dict):
        return LeaseHolder()
    pid = finite(values.get("pid"))
    return LeaseHolder(
        host=str(values.get("host") or ""),
        boot_id=str(values.get("boot_id") or ""),
        pid=None if pid is None else int(pid),
        process_started=finite(values.get("process_started")),
        since=str(values.get("since") or ""),
        token=str(values.get("token") or ""),
    )


def finite_record(record: JsonDict) -> JsonDict:
    """Return a record that JSON can hold: null in place of infinities and values that are not
    numbers, whose text ("nan", "inf", "-inf") then stands in the field `nonfinite`.
    """
    nonfinite = {
        key: str(value)
        for key, value in record.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    if not nonfinite:
        return record
    return {**record, **dict.fromkeys(nonfinite), "nonfinite": nonfinite}


class Journal:
    """Append-only JSON lines, one record a line. A torn last line, left by a crash, is dropped on
    opening.

    Every record ends with its number and a checksum, by which damaged and missing ones are found,
    and those of another journal. A number that JSON cannot hold is written as null, with its text
    ("nan", "inf", "-inf") in the record's field `nonfinite`.

    Args:
        path: The file; made when absent.
        keep_bytes: Everything after this many bytes is removed on opening, because a resumed run
            writes it again. None keeps all.
    """

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        self.path = path
        self._num_records = 0
        if path.exists():
            before = path.read_bytes()
            whole = before[: before.rfind(b"\n") + 1]
            kept = whole[:keep_bytes]
            kept = kept[: kept.rfind(b"\n") + 1]  # of a damaged file the cut may be inside a line
            if kept != before:
                os.truncate(path, len(kept))
            self._num_records = num_records(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    @property
    def num_bytes(self) -> int:
        return self._file.tell()

    @property
    def num_records(self) -> int:
        """How many records have been written so far."""
        return self._num_records

    def append(self, record: JsonDict) -> None:
        line = _checked_line(record, self._num_records + 1, self.path.name)
        try:
            num_written = self._file.write(line)
        except OSError as error:
            raise _not_written(self.path, error) from error
        if num_written != len(line):
            raise _not_written(
                self.path, OSError(errno.ENOSPC, "only a part of a record was written")
            )
        self._num_records += 1

    def sync(self) -> None:
        """Durable up to here; called before a checkpoint that supposes these records."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class NoJournal(Journal):
    """The journal of a process that trains beside the one that writes it: records are dropped.

    Args:
        path: The journal that the other process writes; it may be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._num_records = 0

    @property
    def num_bytes(self) -> int:
        return 0

    def append(self, record: JsonDict) -> None:
        """Drop the record."""

    def sync(self) -> None:
        """Do nothing: there is nothing to make durable."""

    def close(self) -> None:
        """Do nothing: no file is open."""


CHECK = "check"
"""Key, at the end of a record, of its number in the journal and the CRC-32 of record, number and
the file's name.
"""
_CHECK_OF_SOMETHING = re.compile(rb'"\d+-[0-9a-f]{8}"\}\s*$')
_TAIL_BYTES = 1 << 16
"""End of a journal that holds its last records."""
_CHECKED = re.compile(rb'"check": "(\d+)-([0-9a-f]{8})"\}\s*$')


def write_journal_atomically(path: Path, records: Iterable[JsonDict]) -> None:
    """Write a whole journal, as `write_text_atomically` does."""
    lines = (_checked_line(record, number, path.name) for number, record in enumerate(records, 1))
    write_text_atomically(path, b"".join(lines).decode())


def _checked_line(record: JsonDict, number: int, file_name: str) -> bytes:
    """Return a record as a line of a journal. Its last key, `check`, holds the record's number
    and a checksum: `record_of` finds a damaged line by it, `records_lost` a missing one.
    """
    plain = json.dumps(finite_record(record), allow_nan=False).encode()
    start = plain[:-1] + b", " * bool(record)
    return start + b'"check": "%d-%08x"}\n' % (number, _crc(start, number, file_name))


def _crc(start: bytes, number: int, file_name: str) -> int:
    return zlib.crc32(start + b"%d %s" % (number, file_name.encode()))


def record_of(line: bytes, file_name: str) -> JsonDict | None:
    """Return the record in a line of a journal of this name, without its check; None where it is
    damaged.
    """
    has_check = _CHECKED.search(line) is not None
    if has_check and _number_of_checked(line, file_name) is None:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if not has_check and (CHECK in record or _CHECK_OF_SOMETHING.search(line)):
        return None  # the check itself is damaged
    record.pop(CHECK, None)
    return record


def num_records(path: Path) -> int:
    """Return how many records were written into a journal. Every record holds its number, so only
    the end of the file is read. Records of earlier versions hold none; then all lines are counted.
    """
    for num_behind, line in enumerate(reversed(_tail_of(path))):
        if (number := _number_of_checked(line, path.name)) is not None:
            return number + num_behind
    return path.read_bytes().count(b"\n")


def last_record(path: Path) -> JsonDict | None:
    """Return the last sound record at the end of a journal; None if there is none."""
    lines = _tail_of(path)
    return next((row for line in reversed(lines) if (row := record_of(line, path.name))), None)


def _tail_of(path: Path) -> list[bytes]:
    """Return the whole lines at the end of a journal, the first perhaps without its start; none of
    a missing one.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return []
    return tail[: tail.rfind(b"\n") + 1].splitlines(keepends=True)


def is_torn(path: Path) -> bool:
    """Return whether the last record of a journal was cut off."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return bool(content) and not content.endswith(b"\n")


def records_lost(path: Path, num_written: int = 0) -> int:
    """Return how many records of a journal are damaged or missing, apart from a torn last line;
    what is missing is known of journals whose records are numbered.

    Args:
        num_written: Records that it held once, so that a lost end is found too.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return num_written
    last = num_behind = num_sound = num_damaged = 0
    for line in lines:
        if not line.endswith(b"\n"):
            continue
        # A record with the right checksum need not be parsed, which takes most of the time.
        number = _number_of_checked(line, path.name)
        is_sound = number is not None or record_of(line, path.name) is not None
        num_sound, num_damaged = num_sound + is_sound, num_damaged + (not is_sound)
        last, num_behind = (last, num_behind + 1) if number is None else (number, 0)
    return max(num_damaged, last + num_behind - num_sound, num_written - num_sound)


def _number_of_checked(line: bytes, file_name: str) -> int | None:
    """Return the number of a record whose checksum is right; None where it is not, or has none."""
    found = _CHECKED.search(line)
    if found is None:
        return None
    number = int(found[1])
    start, noted = line[: found.start()], int(found[2], 16)
    # An earlier version counted the number alone.
    right = (_crc(start, number, file_name), zlib.crc32(start + b"%d" % number))
    return number if noted in right else None


def read_journal(path: Path) -> Iterator[JsonDict]:
    """Yield the complete records of a journal in order; none if the file is missing."""
    if path.exists():
        lines = path.read_bytes().splitlines(keepends=True)
        yield from (
            record
            for line in lines
            if line.endswith(b"\n") and (record := record_of(line, path.name))
        )


def finite(value: object) -> float | None:
    """Return a number from a file as a finite float; None for anything else, and for integers that
    are too large for a float.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
