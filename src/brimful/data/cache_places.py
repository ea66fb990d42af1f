"""Where in the cache folder the tokenizer and the token ids of documents lie: folders named after
everything their content depends on. No numpy, so that a command can look before it loads anything.
"""

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.data.sources import open_source
from brimful.data.splits import SPLIT_SEED
from brimful.recipe import DataRecipe, Recipe

FORMAT_VERSION = 1
_MADE = 2
"""Raised when token ids, or the report beside them, are made otherwise than before."""
TOKENIZER_FILE, FINGERPRINT_FILE = "tokenizer.json", "brimful.json"
REPORT_FILE = "report.json"
"""Written when the token ids beside it are whole."""
TOKEN_DTYPES = ("<u2", "<u4")
ABANDONED_AFTER_S = 3600


def token_dtype(vocabulary: int) -> str:
    """`<u2` while every id fits into 16 bits (vocabulary up to 65536), else `<u4`."""
    short, long = TOKEN_DTYPES
    return short if vocabulary <= 1 << 16 else long


def cache_key(**parts: object) -> str:
    """Name of a cache folder: 128-bit hash of the canonical JSON of everything the content depends
    on.
    """
    text = json.dumps(
        {"format": FORMAT_VERSION, **parts},
        sort_keys=True,
        ensure_ascii=True,
        separators=(",", ":"),
    )
    return xxhash.xxh3_128_hexdigest(text.encode())


def data_fingerprint(identity: str, data: DataRecipe) -> str:
    """Return a key that differs wherever the documents, their split or their order differ.

    Args:
        identity: The identity of the source.
        data: How it is read and split.
    """
    return cache_key(source=identity, split_seed=SPLIT_SEED, **_split_options(data))


def _split_options(data: DataRecipe) -> JsonDict:
    names = {"validation", "test", "split_by", "duplicates"}
    if data.cache_gib is not None:
        names.add("shuffled_files")  # decides the order
    return data.model_dump(mode="json", include=names)


def tokenizer_folder(recipe: Recipe, cache: Path, fingerprint: str) -> Path:
    """Return where the tokenizer of a recipe lies, by the fingerprint of its data."""
    special_tokens = {"encoder": True} if recipe.kind.fills_masks else {}
    settings = recipe.own_tokenizer.model_dump(mode="json")
    key = cache_key(data=fingerprint, **settings, **special_tokens, form=TOKENIZER_FILE)
    return cache / "tokenizers" / key


def token_folder(cache: Path, fingerprint: str, tokenizer: str, dtype: str) -> Path:
    """Return where token ids lie, by the fingerprints of data and tokenizer."""
    key = cache_key(data=fingerprint, tokenizer=tokenizer, dtype=dtype, made=_MADE)
    return cache / "tokens" / key


def kept_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of the tokenizer in a folder, as it was written; None without one."""
    try:
        return str(read_json(folder / FINGERPRINT_FILE, is_cached=True)["fingerprint"])
    except (RunFolderError, KeyError, TypeError):
        return None


@contextmanager
def made_aside(folder: Path, what: str, is_whole: Callable[[], bool]) -> Iterator[Path]:
    """While entered, a folder can be filled that takes the place of another one when all is
    written. One that is there by then and whole, as another process was faster, stays.

    Args:
        folder: The folder of the cache.
        what: What is in it, for errors.
        is_whole: Whether it is there, and nothing in it damaged.

    Raises:
        DataError: it cannot be written.
    """
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        aside.mkdir()
        yield aside
        if not is_whole():
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
    except OSError as error:
        raise DataError(
            f"the {what} cache {folder} cannot be written: {error}. Free some space or set"
            " BRIMFUL_CACHE to another folder."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Leftovers of killed writers: nothing was written into them for an hour."""
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        newest = max((path.stat().st_mtime for path in [left, *left.iterdir()]), default=0.0)
        if time.time() - newest > ABANDONED_AFTER_S:
            shutil.rmtree(left, ignore_errors=True)


def tokens_are_kept(recipe: Recipe, cache: Path) -> bool:
    """Return whether the token ids of a recipe's documents are in the cache, by names of files.

    Raises:
        DataError: the data cannot be read.
    """
    fingerprint = data_fingerprint(open_source(recipe.data).fingerprint, recipe.data)
    tokenizer = kept_fingerprint(tokenizer_folder(recipe, cache, fingerprint))
    return tokenizer is not None and any(
        (token_folder(cache, fingerprint, tokenizer, dtype) / REPORT_FILE).exists()
        for dtype in TOKEN_DTYPES
    )
