"""A real file system that misbehaves: in memory, served to the kernel through /dev/fuse.

What is done to it goes through the system's own calls, page cache and waiting, so a hang is one
that no signal ends, as with a dead network drive. Needs Linux, /dev/fuse and the right to mount;
`Drive.problem()` says what is missing.

Only the requests that a mirror leads to are answered, by the structures of linux/fuse.h, version
7.31 of the protocol.
"""

import ctypes
import errno
import mmap
import os
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FAULTS = ("none", "write hangs", "read hangs", "quota", "lost behind page cache", "lost by drive")
"""What happens from the moment it is chosen.

`quota`: writing fails with EDQUOT. `lost behind page cache`: written bytes become zeros, while the
kernel's page cache has them. `lost by drive`: the drive shows them until `Drive.lose`.
"""
QUOTA_ROOM = 4096
"""Bytes that a single write may have where the quota is used up: small files still fit."""
FORGET, BATCH_FORGET, INTERRUPT, INIT, READ, WRITE = 2, 42, 36, 26, 15, 16
ROOT = 1
BUFFER_BYTES = 2 * 1024**2
MAX_WRITE_BYTES = 128 * 1024
BIG_WRITES = 32
KEEP_CACHE = 2
SIZE_IS_SET = 8
VALID_S = 3600
DETACH = 2
_ENTRY, _ATTRIBUTES = struct.Struct("<4Q2I"), struct.Struct("<6Q10I")


@dataclass
class Node:
    """A file or folder: what the drive shows, and what is stored where the drive cannot lose it."""

    number: int
    names: "dict[str, Node] | None" = None
    shown: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    time_s: int = field(default_factory=lambda: int(time.time()))

    def attributes(self) -> bytes:
        kind = stat.S_IFREG | 0o644 if self.names is None else stat.S_IFDIR | 0o755
        size, times = len(self.shown), (self.time_s,) * 3
        return _ATTRIBUTES.pack(
            self.number, size, (size + 511) // 512, *times, 0, 0, 0, kind, 1, 0, 0, 0, 4096, 0
        )

    def entry(self) -> bytes:
        return _ENTRY.pack(self.number, 0, VALID_S, VALID_S, 0, 0) + self.attributes()


class Server:
    """Answers the kernel's requests until the file system is unmounted.

    Args:
        device: /dev/fuse, opened and mounted.
        control: Two bytes: the number of the fault, and whether to lose what is not stored.
    """

    def __init__(self, device: int, control: mmap.mmap) -> None:
        self._device, self._control = device, control
        self._nodes = {ROOT: Node(ROOT, {})}
        self._next = ROOT + 1
        self._unanswered: list[int] = []
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._look_up,
            3: self._get_attributes,
            4: self._set_attributes,
            9: self._make_folder,
            10: self._remove,
            11: self._remove,
            12: lambda node, body: self._rename(node, body, 8),
            14: self._open,
            READ: self._read,
            WRITE: self._write,
            17: lambda *_: struct.pack("<5Q10I", *[1 << 24] * 5, 4096, 255, 4096, *[0] * 7),
            18: lambda *_: b"",
            20: lambda *_: b"",
            25: lambda *_: b"",
            INIT: self._init,
            27: self._open,
            28: self._list,
            29: lambda *_: b"",
            30: lambda *_: b"",
            34: lambda *_: b"",
            35: self._create,
            45: lambda node, body: self._rename(node, body, 16),
        }

    def serve(self) -> None:
        """Answer, one request after the other."""
        while True:
            try:
                request = os.read(self._device, BUFFER_BYTES)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, code, unique, node = struct.unpack_from("<2I2Q", request)
            if self._control[1]:
                self._lose()
            fault = FAULTS[self._control[0]]
            hangs = (fault, code) in (("write hangs", WRITE), ("read hangs", READ))
            if hangs:
                self._unanswered.append(unique)
            elif code not in (FORGET, BATCH_FORGET, INTERRUPT):
                self._reply(unique, code, node, request[40:])
            if fault == "none":
                for each in self._unanswered:
                    os.write(self._device, struct.pack("<IiQ", 16, -errno.EIO, each))
                self._unanswered.clear()

    def _reply(self, unique: int, code: int, node: int, body: bytes) -> None:
        problem, answer = 0, b""
        try:
            answer = self._answers.get(code, _unknown)(node, body)
        except OSError as error:
            problem = error.errno or errno.EIO
        os.write(self._device, struct.pack("<IiQ", 16 + len(answer), -problem, unique) + answer)

    def _lose(self) -> None:
        for node in self._nodes.values():
            node.shown = bytearray(node.stored)
        self._control[1] = 0

    def _init(self, _: int, body: bytes) -> bytes:
        _, _, read_ahead, _ = struct.unpack_from("<4I", body)
        return struct.pack(
            "<4I2H2I2H8I",
            7,
            31,
            read_ahead,
            BIG_WRITES,
            16,
            12,
            MAX_WRITE_BYTES,
            1,
            32,
            0,
            *[0] * 8,
        )

    def _folder(self, node: int) -> dict[str, Node]:
        names = self._nodes[node].names
        if names is None:
            raise OSError(errno.ENOTDIR, "")
        return names

    def _look_up(self, node: int, body: bytes) -> bytes:
        names, name = self._folder(node), _text(body)
        if name not in names:
            raise OSError(errno.ENOENT, "")
        return names[name].entry()

    def _get_attributes(self, node: int, _: bytes) -> bytes:
        return struct.pack("<Q2I", VALID_S, 0, 0) + self._nodes[node].attributes()

    def _set_attributes(self, node: int, body: bytes) -> bytes:
        which, _, _, size = struct.unpack_from("<2I2Q", body)
        if which & SIZE_IS_SET:
            each = self._nodes[node]
            for content in (each.shown, each.stored):
                del content[size:]
                content.extend(bytes(size - len(content)))
        return self._get_attributes(node, b"")

    def _add(self, folder: int, name: str, *, is_folder: bool) -> Node:
        node = Node(self._next, {} if is_folder else None)
        self._folder(folder)[name] = self._nodes[self._next] = node
        self._next += 1
        return node

    def _make_folder(self, node: int, body: bytes) -> bytes:
        return self._add(node, _text(body[8:]), is_folder=True).entry()

    def _create(self, node: int, body: bytes) -> bytes:
        made = self._add(node, _text(body[16:]), is_folder=False)
        return made.entry() + self._open(made.number, b"")

    def _open(self, node: int, _: bytes) -> bytes:
        return struct.pack("<Q2I", node, KEEP_CACHE, 0)

    def _remove(self, node: int, body: bytes) -> bytes:
        names, name = self._folder(node), _text(body)
        if name not in names:
            raise OSError(errno.ENOENT, "")
        if names[name].names:
            raise OSError(errno.ENOTEMPTY, "")
        del names[name]
        return b""

    def _rename(self, node: int, body: bytes, num_bytes: int) -> bytes:
        (to,) = struct.unpack_from("<Q", body)
        old, new = (each.decode() for each in body[num_bytes:].split(b"\0")[:2])
        replaced = self._folder(to).get(new)
        if replaced is not None and replaced.names:
            raise OSError(errno.ENOTEMPTY, "")
        self._folder(to)[new] = self._folder(node).pop(old)
        return b""

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        return bytes(self._nodes[node].shown[offset : offset + size])

    def _write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        data, fault, each = body[40 : 40 + size], FAULTS[self._control[0]], self._nodes[node]
        if fault == "quota" and size > QUOTA_ROOM:
            raise OSError(errno.EDQUOT, "")
        each.shown[offset : offset + size] = (
            bytes(size) if fault == "lost behind page cache" else data
        )
        if fault != "lost by drive":
            each.stored[offset : offset + size] = each.shown[offset : offset + size]
        return struct.pack("<2I", size, 0)

    def _list(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        names, listed = sorted(self._folder(node).items()), b""
        for number, (name, each) in enumerate(names[offset:], start=offset + 1):
            raw = name.encode()
            kind = stat.S_IFREG if each.names is None else stat.S_IFDIR
            entry = struct.pack("<2Q2I", each.number, number, len(raw), kind >> 12) + raw
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


class Drive:
    """A mounted `Server`, in a process of its own.

    Attributes:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._control = mmap.mmap(-1, 2)
        device = _mount(folder)
        self._server = os.fork()
        if self._server == 0:
            try:
                Server(device, self._control).serve()
            finally:
                os._exit(0)
        os.close(device)

    @staticmethod
    def problem(folder: Path) -> str | None:
        """Return why no drive can be mounted here; None if one can."""
        try:
            with mounted(folder) as drive:
                (drive.folder / "probe").write_text("probe")
        except OSError as error:
            return f"no file system can be served from a process here: {error}"
        return None

    def choose(self, fault: str) -> None:
        """Misbehave this way from now on."""
        self._control[0] = FAULTS.index(fault)

    def release(self) -> None:
        """Behave again, and answer whoever waits with an error."""
        self.choose("none")
        os.statvfs(self.folder)  # a request makes the server look

    def lose(self) -> None:
        """Show only what is stored, as after the drive was attached anew."""
        self._control[0], self._control[1] = 0, 1
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def close(self) -> None:
        """Unmount it. Whoever still waits for an answer gets an error."""
        _library().umount2(os.fsencode(self.folder), DETACH)
        os.kill(self._server, signal.SIGTERM)
        os.waitpid(self._server, 0)


@contextmanager
def mounted(folder: Path) -> Iterator[Drive]:
    """A drive while entered.

    Raises:
        OSError: it cannot be mounted.
    """
    drive = Drive(folder)
    try:
        yield drive
    finally:
        drive.close()


def _unknown(_node: int, _body: bytes) -> bytes:
    raise OSError(errno.ENOSYS, "")


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(folder: Path) -> int:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if _library().mount(b"faulty", os.fsencode(folder), b"fuse", 0, options):
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, os.strerror(number), "/dev/fuse")
    return device


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode()
