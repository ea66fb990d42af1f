"""From recipe to token ids: open the source, scan it, train the tokenizer, tokenise. All of it is
cached by content.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.types import Counts, JsonDict, Progress
from brimful.base.warning_codes import all_coded
from brimful.data import cache_places
from brimful.data.account import Account
from brimful.data.cache_places import (
    FINGERPRINT_FILE,
    REPORT_FILE,
    TOKENIZER_FILE,
    made_aside,
    token_dtype,
)
from brimful.data.leakage import Scan, leakage_notes, scan, without
from brimful.data.row_layout import tell_long_documents
from brimful.data.sharding import (
    identity_of_files,
    open_shards,
    report_of_shards,
    with_little_training,
)
from brimful.data.shards import Shards
from brimful.data.sources import Source, open_source
from brimful.data.splits import (
    LabelledDocuments,
    check_not_empty,
    far_from_shares,
)
from brimful.data.tokenizer import (
    TokenizerReport,
    as_transformers,
    begin_of,
    check_compression,
    end_of_text_id,
    measure_tokenizer,
    num_cut_words,
    require_fast,
    tokenizer_fingerprint,
    train_backend,
)
from brimful.data.tokens import (
    Encode,
    TokenSplit,
    batch_encoder,
    read_tokens,
    special_tokens_in,
    write_tokens,
)
from brimful.data.word_encoder import quickest_encoder
from brimful.recipe import DataRecipe, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SAMPLES_PER_SPLIT = 16
SAMPLE_CHARACTERS = 4096


@dataclass(frozen=True)
class PreparedData:
    """Everything training needs of the data.

    Attributes:
        tokenizer: Tokenizer as transformers' AutoTokenizer would load it.
        tokenizer_report: Compression, round trip, verdict.
        splits: train, validation, and test where there is one.
        data_fingerprint: Changes when the documents, their split or their order do.
        tokenizer_fingerprint: Changes when the ids do.
        report: What data.json says of it.
        shards: Files of all training tokens, with data.cache_gib; `splits["train"]` is their
            beginning then.
    """

    tokenizer: "PreTrainedTokenizerFast"
    tokenizer_report: TokenizerReport
    splits: dict[str, TokenSplit]
    data_fingerprint: str
    tokenizer_fingerprint: str
    report: JsonDict
    shards: Shards | None = None


@dataclass(frozen=True)
class PreparedTokens:
    """The same before transformers is needed.

    Attributes:
        source: Where the documents come from.
        folder: The folder of the cache, with the token ids.
        tokenizer: Tokenizer as the library `tokenizers` has it.
        splits, report, data_fingerprint, tokenizer_fingerprint: The same as in `PreparedData`.
    """

    source: Source
    folder: Path
    tokenizer: Tokenizer
    splits: dict[str, TokenSplit]
    report: JsonDict
    data_fingerprint: str
    tokenizer_fingerprint: str


@dataclass(frozen=True)
class _Encoding:
    """How documents become token ids.

    Attributes:
        tokenizer: Tokenizer as the library `tokenizers` has it.
        encode: Function from texts to ids, without what stands around them.
        vocabulary: More than the largest id.
        begin, end_of_text: Ids before and behind every document.
        fingerprint: Changes when any of it does.
    """

    tokenizer: Tokenizer
    encode: Encode
    vocabulary: int
    begin: tuple[int, ...]
    end_of_text: int
    fingerprint: str

    @classmethod
    def of_trained(cls, tokenizer: Tokenizer) -> "_Encoding":
        return cls(
            tokenizer,
            quickest_encoder(tokenizer),
            tokenizer.get_vocab_size(),
            (),
            end_of_text_id(tokenizer),
            tokenizer_fingerprint(tokenizer),
        )

    @classmethod
    def of_published(cls, published: "PreTrainedTokenizerFast") -> "_Encoding":
        require_fast(published)
        tokenizer, begin = published.backend_tokenizer, begin_of(published)
        end_of_text = int(published.eos_token_id)
        return cls(
            tokenizer,
            batch_encoder(tokenizer),
            1 + max(published.get_vocab().values()),
            begin,
            end_of_text,
            cache_places.cache_key(
                tokenizer=tokenizer_fingerprint(tokenizer), begin=begin, end=end_of_text
            ),
        )


def prepare(
    recipe: Recipe,
    cache: Path,
    progress: Progress | None = None,
    published: "PreTrainedTokenizerFast | None" = None,
) -> PreparedData:
    """Make or find the tokenizer and the token ids of a recipe's data.

    Args:
        recipe: Its `data` and `tokenizer` sections count.
        cache: Folder for `tokenizers/KEY` and `tokens/KEY`; may be deleted at any time.
        progress: Called with what is going on; not at all when everything comes from the cache.
        published: The tokenizer of a published model; None: one is trained on the data.

    Raises:
        DataError: the data cannot be read, or do not support what the recipe asks.
    """
    made = prepare_tokens(recipe, cache, progress, published)
    tokenizer_report = TokenizerReport(**made.report["tokenizer"])
    check_compression(tokenizer_report)
    tokenizer = published or as_transformers(made.tokenizer)
    account = Account()
    if recipe.data.cache_gib is None:
        tell_long_documents(made.splits["train"], recipe, account)
    prepared = PreparedData(
        tokenizer,
        tokenizer_report,
        made.splits,
        made.data_fingerprint,
        made.tokenizer_fingerprint,
        account.told_in(made.report),
    )
    if recipe.data.cache_gib is None:
        return prepared
    shards = open_shards(made.source, recipe.data, made.folder / "files", tokenizer, progress)
    report = report_of_shards(made.report, shards)
    return dataclasses.replace(prepared, shards=shards, report=report)


def prepare_tokens(
    recipe: Recipe,
    cache: Path,
    progress: Progress | None = None,
    published: "PreTrainedTokenizerFast | None" = None,
) -> PreparedTokens:
    """Make or find the tokenizer and the token ids of a recipe's data, as `prepare` does, without
    importing transformers or torch.
    """
    source = open_source(recipe.data)
    data_fingerprint = _data_fingerprint(source, recipe.data)
    documents = LabelledDocuments(source, recipe.data)
    scanned: Scan | None = None
    if published is None:
        tokenizer_folder = cache_places.tokenizer_folder(recipe, cache, data_fingerprint)
        tokenizer = _load_tokenizer(tokenizer_folder)
        if tokenizer is None:
            scanned = _scan(documents, recipe.data, progress)
            tokenizer = _make_tokenizer(recipe, documents, scanned, progress)
            _save_tokenizer(tokenizer, tokenizer_folder)
        encoding = _Encoding.of_trained(tokenizer)
    else:
        encoding = _Encoding.of_published(published)
    tokenizer, fingerprint = encoding.tokenizer, encoding.fingerprint
    dtype = token_dtype(encoding.vocabulary)
    token_folder = cache_places.token_folder(cache, data_fingerprint, fingerprint, dtype)
    tokens = _load_tokens(token_folder)
    if tokens is None:
        scanned = scanned or _scan(documents, recipe.data, progress)
        tokens = _make_tokens(token_folder, recipe, source, documents, scanned, encoding, progress)
    return PreparedTokens(source, token_folder, tokenizer, *tokens, data_fingerprint, fingerprint)


def _data_fingerprint(source: Source, data: DataRecipe) -> str:
    identity = source.fingerprint if data.cache_gib is None else identity_of_files(source, data)
    return cache_places.data_fingerprint(identity, data)


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
) -> Tokenizer:
    total = scanned.num_documents["train"]

    def training_texts() -> Iterator[str]:
        for number, text in enumerate(
            (text for split, text in documents if split == "train"), start=1
        ):
            if progress and (number % 1000 == 0 or number == total):
                progress("training the tokenizer", number, total)
            yield text

    return train_backend(recipe.own_tokenizer, training_texts(), encoder=recipe.kind.fills_masks)


def _make_tokens(
    folder: Path,
    recipe: Recipe,
    source: Source,
    documents: LabelledDocuments,
    scanned: Scan,
    encoding: _Encoding,
    progress: Progress | None,
) -> tuple[dict[str, TokenSplit], JsonDict]:
    dropped = scanned.dropped(recipe.data)
    samples: dict[str, list[str]] = {}
    whole = recipe.data.cache_gib is None
    kept, account = without(documents, dropped), Account()
    learns_bpe = recipe.tokenizer is not None and recipe.tokenizer.kind == "bpe"
    find = special_tokens_in(encoding.tokenizer)
    write_tokens(
        folder,
        _looked_at(
            kept if whole else with_little_training(kept),
            samples,
            find,
            account,
            learns_bpe=learns_bpe,
        ),
        encoding.encode,
        vocabulary=encoding.vocabulary,
        end_of_text=encoding.end_of_text,
        begin=encoding.begin,
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
    for name, where in source.unread.items():
        account.add("columns", where, name, unit="column")
    kind = "published" if recipe.tokenizer is None else recipe.tokenizer.kind
    measured = measure_tokenizer(
        encoding.tokenizer, kind, splits["train"], splits["validation"], texts
    )
    report = account.told_in(
        {
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
    )
    write_json_atomically(folder / REPORT_FILE, report, with_checksum=True)
    return splits, report


def _share_notes(splits: Mapping[str, TokenSplit], source: Source, data: DataRecipe) -> list[str]:
    if any(len(part.splits) > 1 for part in source.parts):
        return []
    return far_from_shares({name: split.num_characters for name, split in splits.items()}, data)


def _looked_at(
    documents: Iterable[tuple[str, str]],
    samples: dict[str, list[str]],
    special_tokens_in_text: Callable[[str], set[str]],
    account: Account,
    *,
    learns_bpe: bool,
) -> Iterator[tuple[str, str]]:
    """Pass the pairs on, put the beginnings of the first few of each split into `samples` and count
    those that spell special tokens, and words that BPE learned from in parts.
    """
    counts = Counter[str]()
    for split, text in documents:
        counts[split] += 1
        where = f"document {counts[split]} of {split}"
        if learns_bpe and split == "train":
            account.add("long_words", where, count=num_cut_words(text))
        if names := special_tokens_in_text(text):
            account.add("spelled", where, *sorted(names), unit="document")
        kept = samples.setdefault(split, [])
        if len(kept) < SAMPLES_PER_SPLIT:
            kept.append(text[:SAMPLE_CHARACTERS])
        yield split, text


def _counts(split: TokenSplit) -> Counts:
    return {
        "documents": split.num_documents,
        "bytes": split.num_bytes,
        "characters": split.num_characters,
        "words": split.num_words,
        "tokens": split.num_tokens,
    }


def _load_tokens(folder: Path) -> tuple[dict[str, TokenSplit], JsonDict] | None:
    try:
        report = read_json(folder / REPORT_FILE, is_cached=True)
        TokenizerReport(**report["tokenizer"])
    except (RunFolderError, KeyError, TypeError):
        return None
    splits = read_tokens(folder)
    if splits is None:
        return None
    return splits, report


def _load_tokenizer(folder: Path) -> Tokenizer | None:
    """The cached tokenizer; None where there is none, or it was changed after it was saved."""
    expected = cache_places.kept_fingerprint(folder)
    if expected is None:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    except Exception:  # the library raises no class of its own
        return None
    return tokenizer if tokenizer_fingerprint(tokenizer) == expected else None


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    with made_aside(folder, "tokenizer", lambda: _load_tokenizer(folder) is not None) as aside:
        (aside / TOKENIZER_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
        write_json_atomically(
            aside / FINGERPRINT_FILE,
            {"fingerprint": tokenizer_fingerprint(tokenizer)},
            with_checksum=True,
        )
