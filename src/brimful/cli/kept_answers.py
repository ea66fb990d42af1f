"""What `brimful plan` printed, kept for the same question under the same circumstances.

Only answers are kept that nothing but this package, its libraries, the environment and compiled
steps in the cache folder decides: for devices of the catalog, and without files of the user's own.
This module is imported before all others and imports nothing that takes time.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from brimful.base.env import cache_folder, lasting_variables
from brimful.base.kept_values import read_whole, write_whole

FORMAT = 1
MOST_KEPT = 200
"""Answers in the cache folder; the oldest go first."""
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass
class Said:
    """What was printed while it listened: pairs of "stdout" or "stderr" and a text."""

    texts: list[tuple[str, str]] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note what is printed until the block ends."""
        streams = sys.stdout, sys.stderr
        sys.stdout = _Noted(streams[0], "stdout", self.texts)
        sys.stderr = _Noted(streams[1], "stderr", self.texts)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams


class _Noted:
    """A stream whose texts are noted, too."""

    def __init__(self, stream: TextIO, name: str, texts: list[tuple[str, str]]) -> None:
        self._stream, self._name, self._texts = stream, name, texts

    def write(self, text: str) -> int:
        self._texts.append((self._name, text))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@dataclass(frozen=True)
class AskedCommand:
    """A command, and the file for its answer under the present circumstances."""

    path: Path

    @classmethod
    def asked(cls, words: Sequence[str]) -> "AskedCommand | None":
        """Return the question that a command asks; None where its answer is not kept."""
        if not words or words[0] != "plan" or any(_names_a_file(word) for word in words[1:]):
            return None
        folder = cache_folder()
        what = [
            FORMAT,
            list(words),
            sys.version,
            os.getcwd(),
            _files_of(PACKAGE),
            _installed(),
            lasting_variables(),
            [_width_of(stream) for stream in (0, 1, 2)],
            _traces_in(folder / "traces"),
            _measured_links(folder / "links"),
        ]
        digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
        return cls(folder / "answers" / f"{digest}.json")

    def answer_again(self) -> int | None:
        """Print the kept answer and return its exit code; None where there is none."""
        if (content := read_whole(self.path)) is None:
            return None
        kept = json.loads(content)
        streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        for name, text in kept["said"]:
            streams[name].write(text)
        for stream in streams.values():
            stream.flush()
        return int(kept["code"])

    def keep(self, said: Said, code: int) -> None:
        """Write an answer; what cannot be written is not kept."""
        write_whole(self.path, json.dumps({"code": code, "said": said.texts}).encode())
        with contextlib.suppress(OSError):
            kept = sorted(self.path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in kept[:-MOST_KEPT]:
                path.unlink()


def keep(question: object, said: Said, code: int) -> None:
    """Keep the answer where the command line can keep one."""
    if isinstance(question, AskedCommand):
        question.keep(said, code)


def _names_a_file(word: str) -> bool:
    return any(os.path.exists(part) for part in {word, word.partition("=")[2]} if part)


def _files_of(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of all files in a folder of code and data."""
    found = []
    pending = [os.fspath(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending += [entry.path] * (entry.name != "__pycache__")
                else:
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
    return sorted(found)


def _installed() -> list[str]:
    """Return names and versions of the installed libraries, without reading their metadata."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found += [name for name in os.listdir(folder) if name.endswith("-info")]
    return sorted(found)


def _measured_links(folder: Path) -> list[tuple[str, int, int]]:
    """Return what `_files_of` says of measurements that later plans use; there may be none."""
    return _files_of(folder) if folder.is_dir() else []


def _traces_in(folder: Path) -> list[str]:
    """Return the names of kept traces: a compiled one changes what later plans say."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    return []


def _width_of(stream: int) -> tuple[int, bool]:
    with contextlib.suppress(OSError):
        return os.get_terminal_size(stream).columns, os.isatty(stream)
    return 0, False
