"""An atlas as files: a page, its style and script, an index, and a file of tables for each model
and method, which the page loads when they are asked for.

Tables are scripts rather than JSON files, because a page that is opened from a disk may load those.
"""

import datetime
import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from brimful.base.console import Say
from brimful.base.errors import RequestError
from brimful.base.libraries import installed_version
from brimful.base.rundir import write_text_atomically
from brimful.base.types import JsonDict
from brimful.faces.atlas.answers import CELL, HOW, VERDICTS, tables_of
from brimful.faces.atlas.scope import Question, Scope
from brimful.hardware import catalog as device_catalog
from brimful.hardware.naming import short_name
from brimful.planning.target import target_of
from brimful.rehearsal.shipped import library_versions

PAGE, INDEX, TABLES = "index.html", "tables/index.js", "tables"
_PAGE_FILES = (PAGE, "atlas.css", "atlas.js")


@dataclass(frozen=True)
class Written:
    """An atlas on disk.

    Attributes:
        page: The file to open.
        num_tables: Questions answered, each for every device.
        num_left_out: Questions that could not be planned for.
        size_bytes: Size of all files.
    """

    page: Path
    num_tables: int
    num_left_out: int
    size_bytes: int


def write_atlas(folder: Path, scope: Scope, say: Say) -> Written:
    """Compute an atlas and write it into a folder, which is made; an atlas that is there is
    replaced.

    Raises:
        RequestError: the folder holds something else.
    """
    refuse_other_content(folder)
    (folder / TABLES).mkdir(parents=True, exist_ok=True)
    progress = _Counted(scope.size, say)
    models, kept = [], {INDEX}
    num_tables = num_left_out = 0
    for model in scope.models:
        files = {}
        for method in scope.methods:
            questions = list(scope.questions(model, method))
            found = tables_of(questions, scope.devices, progress)
            num_left_out += len(found.left_out)
            if found.tables:
                files[method] = f"{TABLES}/{_file_name(model)}.{method}.js"
                _write_script(folder / files[method], "tables", found.to_json())
                num_tables += len(found.tables)
        if not files:
            raise RequestError(
                f"nothing of {model} can be planned: {next(iter(found.left_out.values()))}"
            )
        kept.update(files.values())
        models.append({"name": model, "lengths": list(scope.lengths_of(model)), "files": files})
    _write_script(folder / INDEX, "index", _index(scope, models))
    for old in (folder / TABLES).glob("*.js"):
        if f"{TABLES}/{old.name}" not in kept:
            old.unlink()
    for name in _PAGE_FILES:
        write_text_atomically(folder / name, _own_text(name))
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Written(folder / PAGE, num_tables, num_left_out, size_bytes)


def refuse_other_content(folder: Path) -> None:
    """Raise RequestError unless a folder is missing, empty, or an atlas."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RequestError(f"{folder} is no folder. Name one that is empty or does not exist.")
    if any(folder.iterdir()) and not (folder / INDEX).is_file() and not _only_tables(folder):
        raise RequestError(
            f"{folder} holds something other than an atlas. Name a folder that is empty or does"
            " not exist."
        )


def _only_tables(folder: Path) -> bool:
    """Whether a folder holds what an interrupted atlas left."""
    return [path.name for path in folder.iterdir()] == [TABLES]


class _Counted:
    """Says which question is answered, and how many of how many."""

    def __init__(self, size: int, say: Say) -> None:
        self._size, self._say, self._done = size, say, 0

    def __call__(self, question: Question) -> None:
        self._done += 1
        self._say(
            f"{self._done} of {self._size}: {question.method} of {question.model},"
            f" {question.batch} x {question.length} tokens a step"
        )


def _index(scope: Scope, models: list[JsonDict]) -> JsonDict:
    return {
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "brimful": installed_version(),
        "libraries": dict(library_versions()),
        "cell": CELL,
        "verdicts": VERDICTS,
        "how": HOW,
        "methods": list(scope.methods),
        "batches": sorted(scope.batches),
        "tokens": sorted(scope.tokens),
        "models": models,
        "devices": [_device(name) for name in scope.devices],
    }


def _device(name: str) -> JsonDict:
    device, price = device_catalog.get(name), device_catalog.price_of(name)
    return {
        "name": name,
        "short": short_name(name),
        "memory_bytes": device.memory_bytes,
        "usable_bytes": target_of(device).usable_bytes,
        "usd_per_hour": None if price is None else price.usd_per_hour,
        "price_of": None if price is None else f"{price.source}, read {price.read}",
    }


def _write_script(path: Path, function: str, value: JsonDict) -> None:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    write_text_atomically(path, f"brimfulAtlas.{function}({text});\n")


def _file_name(model: str) -> str:
    """`meta-llama/Llama-3.1-8B` -> `meta-llama.llama-3.1-8b`."""
    return re.sub(r"[^\w.\-]+", ".", model).lower()


def _own_text(name: str) -> str:
    return (resources.files("brimful.faces.atlas") / "site" / name).read_text(encoding="utf-8")
