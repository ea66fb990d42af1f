"""Token ids on disk: one folder per (data, tokenizer, format), memory-mapped, written aside and
renamed when whole.

A folder holds, per split, `SPLIT.tokens.bin` (little-endian uint16 or uint32) and
`SPLIT.offsets.bin` (little-endian uint64), and `index.json` with counts and xxh3 checksums.
Suffixes: N tokens of a split, D documents of a split.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from tokenizers import Tokenizer

from brimful.base.arrays import Array, Bools
from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.types import Json, Progress
from brimful.data.cache_places import FORMAT_VERSION, made_aside, token_dtype

Encode = Callable[[list[str]], list[list[int]]]
"""Texts to token ids, without special tokens."""

BATCH_CHARACTERS = 1 << 19
"""Text handed to the tokenizer at once, which takes some 120 bytes of memory for a character."""
PIECE_CHARACTERS = 1 << 16
"""The length from which a document is encoded in pieces."""
CONTEXT_CHARACTERS = 256
"""Characters on either side of a cut, with which it is tried."""
_WORD = 16
"""Characters to the next cut where one is left out."""
LONGEST_PIECE = 16
"""A piece is at most so many times as long as asked, whatever stands in the text."""
_CUTS = (
    re.compile(r"(?<=[^\W_])(?=\s)"),
    re.compile(r"(?<=\S)(?=[ \t\n])"),
    re.compile(
        r"(?<=[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3])"
        r"(?=[0-9.,;:!?(){}\[\]<>=+*/\\\"|&\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
    ),
)
"""Places between two words of a byte-level tokenizer, the first kind that is found: between a
letter or digit and white space, anything visible and white space, a letter and a mark or digit.
"""


@dataclass(frozen=True)
class TokenSplit:
    """One split as token ids; every document is followed by the end-of-text id.

    Attributes:
        tokens_N: All ids, documents end to end, uint16 or uint32, usually memory-mapped.
        document_offsets: uint64 [D + 1]; document d is `tokens_N[offsets[d]:offsets[d + 1]]`, its
            end-of-text included.
        num_bytes: UTF-8 bytes of the documents' texts (end-of-text counts nothing).
        num_characters: Characters of the documents' texts.
        num_documents: D.
        num_words: Number of words of the documents' texts, parted by white space; 0: not counted.
    """

    tokens_N: Array
    document_offsets: Array
    num_bytes: int
    num_characters: int
    num_documents: int
    num_words: int = 0

    @property
    def num_tokens(self) -> int:
        """N, the end-of-text ids included."""
        return len(self.tokens_N)

    @property
    def offsets_E(self) -> Array:  # noqa: N802 - shape suffix
        """`document_offsets`, under the name that other kinds of splits have."""
        return self.document_offsets

    @property
    def is_target_N(self) -> Bools:  # noqa: N802 - shape suffix
        """Whether a token is learned: all are."""
        return np.broadcast_to(np.True_, self.num_tokens)

    @property
    def wheres(self) -> list[str]:
        """Nothing: documents have no rows."""
        return []

    @property
    def end_of_text(self) -> int:
        """Id that closes every document."""
        return int(self.tokens_N[-1])


def text_pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a long text into pieces of `size` characters or somewhat more, between two words.

    Neither byte-level BPE (whose words never run over such a place, in either direction) nor a
    character tokenizer sees the cut: the ids of the pieces, joined, are the ids of the whole, but
    within one word of more than 15 * `size` characters. For others see `pieces_in_context`.
    """
    start = 0
    while (end := _next_cut(text, start, size)) < len(text):
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _next_cut(text: str, start: int, size: int) -> int:
    if len(text) - start <= size:
        return len(text)
    most = start + LONGEST_PIECE * size
    found = (cut.search(text, start + size, most) for cut in _CUTS)
    return next((match.start() for match in found if match), most)


def pieces_in_context(text: str, encode: Encode) -> Iterator[tuple[str, str, int]]:
    """Cut a long text so that the ids of its pieces, joined, are those of the whole, for any
    tokenizer. One that puts a space before a text, as SentencePiece does, sees only the first.

    Every cut is tried on the characters around it, and where a word runs over it, the next one is.
    Only where that is so for 15 times `PIECE_CHARACTERS` on end, ids can differ.

    Yields:
        What stands before the piece when it is encoded, the piece, and the number of ids to drop:
        those of what stands before it.
    """
    before, dropped, start = "", 0, 0
    end = _next_cut(text, start, PIECE_CHARACTERS)
    while end < len(text):
        left = text[max(start, end - CONTEXT_CHARACTERS) : end]
        right = text[end : end + CONTEXT_CHARACTERS]
        of_left, of_right, of_both = encode([left, right, left + right])
        is_between = of_both[: len(of_left)] == of_left
        if not is_between and end - start < LONGEST_PIECE * PIECE_CHARACTERS:
            end = _next_cut(text, end, _WORD)
            continue
        yield before, text[start:end], dropped
        is_alike = not is_between or of_left + of_right == of_both
        before, dropped = ("", 0) if is_alike else (left, len(of_left))
        start, end = end, _next_cut(text, end, PIECE_CHARACTERS)
    yield before, text[start:], dropped


class _SplitWriter:
    """Appends documents of one split to its token file.

    Args:
        path: The beginning of the names of its files.
        dtype: numpy type of the ids.
        end_of_text: Id after every document.
        begin: Ids before every document.
    """

    def __init__(self, path: str, dtype: str, end_of_text: int, begin: Sequence[int]) -> None:
        self._path, self._dtype = path, dtype
        self._end_of_text, self._begin = end_of_text, begin
        self.file = open(f"{path}.tokens.bin", "wb")  # noqa: SIM115 - closed by who made this
        self._offsets = [0]
        self._num_bytes = self._num_characters = self._num_words = 0
        self._is_in_word = False
        self._checksum = xxhash.xxh3_128()

    def add(self, text: str, ids: list[int]) -> None:
        """One document, or its last piece."""
        self.add_piece(text, [*ids, self._end_of_text])
        self._offsets.append(self.file.tell() // int(self._dtype[-1]))
        self._is_in_word = False

    def add_piece(self, text: str, ids: list[int]) -> None:
        if self.file.tell() == self._offsets[-1] * int(self._dtype[-1]):
            ids = [*self._begin, *ids]
        raw = np.asarray(ids, dtype=self._dtype).tobytes()
        self.file.write(raw)
        self._checksum.update(raw)
        self._num_bytes += len(text.encode())
        self._num_characters += len(text)
        is_going_on = self._is_in_word and text[:1].strip()
        self._num_words += len(text.split()) - bool(is_going_on)
        self._is_in_word = bool(text[-1:].strip())

    def finish(self) -> dict[str, object]:
        self.file.close()
        raw = np.asarray(self._offsets, dtype="<u8").tobytes()
        Path(f"{self._path}.offsets.bin").write_bytes(raw)
        return {
            "tokens": self._offsets[-1],
            "documents": len(self._offsets) - 1,
            "bytes": self._num_bytes,
            "characters": self._num_characters,
            "words": self._num_words,
            "tokens_xxh3": self._checksum.hexdigest(),
            "offsets_xxh3": xxhash.xxh3_128_hexdigest(raw),
        }


def write_tokens(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    encode: Encode,
    *,
    vocabulary: int,
    end_of_text: int,
    begin: Sequence[int] = (),
    num_documents: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Tokenise `(split, text)` pairs into `folder`, which appears only when everything in it is
    whole.

    Args:
        folder: The cache folder to make; a damaged one in its place is replaced.
        documents: Pairs in the order to keep; read once, never held.
        encode: Batch encoder, for example `batch_encoder(tokenizer)`.
        vocabulary: Number of ids; decides between 16 and 32 bits.
        end_of_text: Id written after every document.
        begin: Ids written before every document.
        num_documents: Total for the progress, where known.
        progress: Called after every batch.

    Raises:
        DataError: the cache folder cannot be written, or there are no documents.
    """
    dtype, writers, done = token_dtype(vocabulary), dict[str, _SplitWriter](), 0
    with made_aside(folder, "token", lambda: read_tokens(folder) is not None) as aside:
        try:
            for batch in _batches(documents, encode):
                ids_of = encode([before + text for _, (before, text, _), _ in batch])
                for (split, (_, text, dropped), is_last), ids in zip(batch, ids_of, strict=True):
                    if split not in writers:
                        path = str(aside / split)
                        writers[split] = _SplitWriter(path, dtype, end_of_text, begin)
                    add = writers[split].add if is_last else writers[split].add_piece
                    add(text, ids[dropped:])
                    done += is_last
                if progress:
                    progress("tokenising", done, num_documents)
            splits = {split: writer.finish() for split, writer in writers.items()}
        finally:
            for writer in writers.values():
                writer.file.close()
        if not splits:
            raise DataError("there is no document to tokenise; check data.path.")
        write_json_atomically(
            aside / "index.json",
            {"format": FORMAT_VERSION, "dtype": dtype, "splits": splits},
            with_checksum=True,
        )


def _batches(
    documents: Iterable[tuple[str, str]], encode: Encode
) -> Iterator[list[tuple[str, tuple[str, str, int], bool]]]:
    """Groups of (split, piece in context, whether it ends its document) of about
    `BATCH_CHARACTERS`.
    """
    batch: list[tuple[str, tuple[str, str, int], bool]] = []
    num_characters = 0
    for split, text in documents:
        left = len(text)
        for piece in pieces_in_context(text, encode):
            left -= len(piece[1])
            batch.append((split, piece, not left))
            num_characters += len(piece[1]) + 1
            if num_characters >= BATCH_CHARACTERS:
                yield batch
                batch, num_characters = [], 0
    if batch:
        yield batch


def read_tokens(folder: Path) -> dict[str, TokenSplit] | None:
    """The splits of a cache folder, memory-mapped; None when it is absent, of another format or
    from before words were counted, or damaged in any byte.
    """
    try:
        index = read_json(folder / "index.json", is_cached=True)
        if index["format"] != FORMAT_VERSION:
            return None
        return {
            name: _map_split(folder, name, index["dtype"], record)
            for name, record in index["splits"].items()
        }
    except (RunFolderError, OSError, ValueError, KeyError, TypeError):
        return None


def _map_split(folder: Path, name: str, dtype: str, record: Json) -> TokenSplit:
    tokens_N = np.memmap(folder / f"{name}.tokens.bin", dtype=dtype, mode="r")
    offsets = np.fromfile(folder / f"{name}.offsets.bin", dtype="<u8")
    if _checksum(tokens_N) != record["tokens_xxh3"] or _checksum(offsets) != record["offsets_xxh3"]:
        raise ValueError(f"{folder / name} does not match its checksum")
    return TokenSplit(
        tokens_N,
        offsets,
        record["bytes"],
        record["characters"],
        record["documents"],
        record["words"],
    )


def _checksum(values: Array) -> str:
    checksum = xxhash.xxh3_128()
    step = 1 << 24
    for start in range(0, len(values), step):
        checksum.update(np.ascontiguousarray(values[start : start + step]).data)
    return checksum.hexdigest()


def backend_of(tokenizer: Any) -> Tokenizer:
    """Return a tokenizer of the library `tokenizers`: itself, or inside of one of transformers."""
    return tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer


def special_tokens_in(tokenizer: Any) -> Callable[[str], set[str]]:
    """Return a function that finds the special tokens of a tokenizer that a text spells."""
    added = backend_of(tokenizer).get_added_tokens_decoder().values()
    special = sorted({token.content for token in added if token.special}, reverse=True)
    find = re.compile("|".join(map(re.escape, special)) or r"\Z.").findall
    return lambda text: {*find(text)}


def batch_encoder(tokenizer: Any, *, special_tokens_are_text: bool = True) -> Encode:
    """Batch encoder of a tokenizer, or of a fast one of transformers, for training text.

    Text that happens to spell a special token, such as `<|endoftext|>`, is encoded as the text it
    is, or else as that token.
    """
    try:
        backend = Tokenizer.from_str(backend_of(tokenizer).to_str())
    except Exception as error:  # the library raises no class of its own
        name = getattr(tokenizer, "name_or_path", "")
        raise DataError(
            f"the tokenizer {name} contradicts itself: {error}. Put a sound tokenizer.json back."
        ) from error
    backend.encode_special_tokens = special_tokens_are_text
    backend.no_truncation()
    backend.no_padding()

    def encode(texts: list[str]) -> list[list[int]]:
        return [
            encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)
        ]

    return encode
