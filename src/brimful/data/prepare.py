"""From recipe to token ids: open the source, scan it, train the tokenizer, tokenise. All of it is
cached by content.
"""

import dataclasses
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.warning_codes import all_coded
from brimful.data.leakage import Scan, leakage_notes, scan, without
from brimful.data.sharding import (
    identity_of_files,
    open_shards,
    report_of_shards,
    with_little_training,
)
from brimful.data.shards import Shards
from brimful.data.sources import Source, open_source
from brimful.data.splits import (
    SPLIT_SEED,
    LabelledDocuments,
    check_not_empty,
    far_from_shares,
)
from brimful.data.tokenizer import (
    TokenizerReport,
    check_compression,
    measure_tokenizer,
    tokenizer_fingerprint,
    train_tokenizer,
)
from brimful.data.tokens import (
    Progress,
    TokenSplit,
    batch_encoder,
    cache_key,
    read_tokens,
    token_dtype,
    write_tokens,
)
from brimful.recipe import DataRecipe, Recipe

SAMPLES_PER_SPLIT = 16
SAMPLE_CHARACTERS = 4096


@dataclass(frozen=True)
class PreparedData:
    """Everything training needs of the data.

    Attributes:
        tokenizer: As transformers' AutoTokenizer would load it.
        tokenizer_report: Compression, round trip, verdict.
        splits: train, validation, and test where there is one.
        data_fingerprint: Changes when the documents, their split or their order do.
        tokenizer_fingerprint: Changes when the ids do.
        report: For data.json.
        shards: With data.cache_gib, all training tokens; `splits["train"]` is their beginning then.
    """

    tokenizer: PreTrainedTokenizerFast
    tokenizer_report: TokenizerReport
    splits: dict[str, TokenSplit]
    data_fingerprint: str
    tokenizer_fingerprint: str
    report: dict[str, Any]
    shards: Shards | None = None


def prepare(recipe: Recipe, cache: Path, progress: Progress | None = None) -> PreparedData:
    """Make or find the tokenizer and the token ids of a recipe's data.

    Args:
        recipe: Its `data` and `tokenizer` sections count.
        cache: Folder for `tokenizers/KEY` and `tokens/KEY`; may be deleted at any time.
        progress: Called with what is going on; not at all when everything comes from the cache.

    Raises:
        DataError: the data cannot be read, or do not support what the recipe asks.
    """
    source = open_source(recipe.data)
    identity = (
        source.fingerprint
        if recipe.data.cache_gib is None
        else identity_of_files(source, recipe.data)
    )
    data_fingerprint = cache_key(
        source=identity, split_seed=SPLIT_SEED, **_split_options(recipe.data)
    )
    documents = LabelledDocuments(source, recipe.data)
    special_tokens = {"encoder": True} if recipe.kind.fills_masks else {}
    tokenizer_folder = (
        cache
        / "tokenizers"
        / cache_key(
            data=data_fingerprint, **recipe.own_tokenizer.model_dump(mode="json"), **special_tokens
        )
    )
    scanned: Scan | None = None
    tokenizer = _load_tokenizer(tokenizer_folder)
    if tokenizer is None:
        scanned = _scan(documents, recipe.data, progress)
        tokenizer = _make_tokenizer(recipe, documents, scanned, progress)
        _save_tokenizer(tokenizer, tokenizer_folder)
    fingerprint = tokenizer_fingerprint(tokenizer)
    token_folder = (
        cache
        / "tokens"
        / cache_key(data=data_fingerprint, tokenizer=fingerprint, dtype=token_dtype(len(tokenizer)))
    )
    tokens = _load_tokens(token_folder)
    if tokens is None:
        scanned = scanned or _scan(documents, recipe.data, progress)
        tokens = _make_tokens(token_folder, recipe, source, documents, scanned, tokenizer, progress)
    splits, report = tokens
    tokenizer_report = TokenizerReport(**report["tokenizer"])
    check_compression(tokenizer_report)
    prepared = PreparedData(
        tokenizer, tokenizer_report, splits, data_fingerprint, fingerprint, report
    )
    if recipe.data.cache_gib is None:
        return prepared
    shards = open_shards(source, recipe.data, token_folder / "files", tokenizer, progress)
    return dataclasses.replace(prepared, shards=shards, report=report_of_shards(report, shards))


def _split_options(data: DataRecipe) -> dict[str, Any]:
    names = {"validation", "test", "split_by", "duplicates"}
    if data.cache_gib is not None:
        names.add("shuffled_files")  # decides the order
    return data.model_dump(mode="json", include=names)


def _scan(documents: LabelledDocuments, data: DataRecipe, progress: Progress | None) -> Scan:
    scanned = scan(documents, progress)
    dropped = Counter(scanned.dropped(data).values())
    check_not_empty(
        {split: count - dropped[split] for split, count in scanned.num_documents.items()},
        data,
        dropped.total(),
    )
    return scanned


def _make_tokenizer(
    recipe: Recipe, documents: LabelledDocuments, scanned: Scan, progress: Progress | None
) -> PreTrainedTokenizerFast:
    total = scanned.num_documents["train"]

    def training_texts() -> Iterator[str]:
        for number, text in enumerate(
            (text for split, text in documents if split == "train"), start=1
        ):
            if progress and (number % 1000 == 0 or number == total):
                progress("training the tokenizer", number, total)
            yield text

    settings = recipe.own_tokenizer
    return train_tokenizer(
        settings.kind,
        settings.vocabulary,
        settings.min_frequency,
        training_texts(),
        accept_fewer=settings.fewer == "accept",
        split_digits=settings.split_digits,
        lowercase=settings.lowercase,
        encoder=recipe.kind.fills_masks,
    )


def _make_tokens(
    folder: Path,
    recipe: Recipe,
    source: Source,
    documents: LabelledDocuments,
    scanned: Scan,
    tokenizer: PreTrainedTokenizerFast,
    progress: Progress | None,
) -> tuple[dict[str, TokenSplit], dict[str, Any]]:
    dropped = scanned.dropped(recipe.data)
    samples: dict[str, list[str]] = {}
    whole = recipe.data.cache_gib is None
    kept = without(documents, dropped)
    write_tokens(
        folder,
        _keeping_samples(kept if whole else with_little_training(kept), samples),
        batch_encoder(tokenizer),
        vocabulary=len(tokenizer),
        end_of_text=tokenizer.eos_token_id,
        num_documents=sum(scanned.num_documents.values()) - len(dropped) if whole else None,
        progress=progress,
    )
    splits = read_tokens(folder)
    if splits is None:
        raise DataError(
            f"the token cache {folder} does not read back as written. Check the disk, or set"
            " BRIMFUL_CACHE to another folder."
        )
    texts = [text for kept in samples.values() for text in kept]
    measured = measure_tokenizer(
        tokenizer, recipe.own_tokenizer.kind, splits["train"], splits["validation"], texts
    )
    report = {
        "sources": [part.description for part in source.parts],
        "splits": {name: _counts(split) for name, split in splits.items()},
        "tokenizer": measured.to_json(),
        "leakage": {**scanned.report, "dropped": len(dropped)},
        "notes": [
            *all_coded("B201", source.notes),
            *all_coded("B202", documents.notes),
            *all_coded("B203", _share_notes(splits, source, recipe.data) if whole else ()),
            *all_coded("B204", leakage_notes(scanned, len(dropped))),
        ],
    }
    write_json_atomically(folder / "report.json", report)
    return splits, report


def _share_notes(splits: Mapping[str, TokenSplit], source: Source, data: DataRecipe) -> list[str]:
    if any(len(part.splits) > 1 for part in source.parts):
        return []
    return far_from_shares({name: split.num_characters for name, split in splits.items()}, data)


def _keeping_samples(
    documents: Iterable[tuple[str, str]], samples: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """Pass the pairs on and put the beginnings of the first few of each split into `samples`."""
    for split, text in documents:
        kept = samples.setdefault(split, [])
        if len(kept) < SAMPLES_PER_SPLIT:
            kept.append(text[:SAMPLE_CHARACTERS])
        yield split, text


def _counts(split: TokenSplit) -> dict[str, int]:
    return {
        "documents": split.num_documents,
        "bytes": split.num_bytes,
        "characters": split.num_characters,
        "words": split.num_words,
        "tokens": split.num_tokens,
    }


def _load_tokens(folder: Path) -> tuple[dict[str, TokenSplit], dict[str, Any]] | None:
    try:
        report: dict[str, Any] = read_json(folder / "report.json")
        TokenizerReport(**report["tokenizer"])
    except (RunFolderError, KeyError, TypeError):
        return None
    splits = read_tokens(folder)
    if splits is None:
        return None
    return splits, report


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerFast | None:
    """The cached tokenizer; None where there is none, or it was changed after it was saved."""
    try:
        expected = read_json(folder / "brimful.json")["fingerprint"]
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except (RunFolderError, OSError, ValueError, KeyError, TypeError):
        return None
    if tokenizer_fingerprint(tokenizer) != expected:
        return None
    for key in ("is_local", "local_files_only"):  # how it was read; an export would repeat it
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def _save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        aside.mkdir(parents=True)
        tokenizer.save_pretrained(aside)
        write_json_atomically(
            aside / "brimful.json", {"fingerprint": tokenizer_fingerprint(tokenizer)}
        )
        if _load_tokenizer(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
    except OSError as error:
        raise DataError(
            f"the tokenizer cache {folder} cannot be written: {error}. Free some space or set"
            " BRIMFUL_CACHE to another folder."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
