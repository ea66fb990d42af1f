"""Tokenizers trained here, on training documents only, by the Rust library `tokenizers`, in the
form transformers loads. A published one may have more tokens than its model's embedding has rows;
those that no text needs do no harm, the others are refused.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.tokens import LONGEST_PIECE, TokenSplit, backend_of, batch_encoder, text_pieces
from brimful.model.description import CLS_TOKEN, ENCODER_TOKENS, MASK_TOKEN, PAD_TOKEN, SEP_TOKEN
from brimful.recipe.data import TokenizerRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers import PreTrainedTokenizerBase

from brimful.base.arrays import Array

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"

FAIL_BELOW = 1.5
"""Characters per token under which a BPE tokenizer compresses too little to train on (gate of the
tiny_gpt guide).
"""
LEARNED_PIECE_CHARACTERS = 1 << 10
"""A word of 16 times so many characters or more is cut where BPE learns from it, whose time grows
with the square of a word's length: a million times one letter took over 15 minutes. All other words
stay as they are.
"""
_VERDICTS = ((FAIL_BELOW, "fail"), (2.5, "low"), (3.5, "good"), (float("inf"), "excellent"))


@dataclass(frozen=True)
class TokenizerReport:
    """How well a tokenizer fits the text. Ratios leave the end-of-text tokens out.

    Attributes:
        kind: bpe or character; published: that of a published model.
        vocabulary: Number of ids.
        characters_per_token, bytes_per_token: Measured on held-out validation text.
        train_characters_per_token, train_bytes_per_token: The same on training text.
        unknown_share: Share of validation tokens that are the unknown token.
        round_trip: Whether decoding gave back every sampled text exactly, or in small letters where
            the tokenizer knows no others.
        verdict: Judgement by characters per token: fail below 1.5, low below 2.5, good below 3.5,
            else excellent; a character tokenizer is exempt.
        fingerprint: SHA-256 of the canonical tokenizer.json.
    """

    kind: str
    vocabulary: int
    characters_per_token: float
    bytes_per_token: float
    train_characters_per_token: float
    train_bytes_per_token: float
    unknown_share: float
    round_trip: bool
    verdict: str
    fingerprint: str

    def to_json(self) -> JsonDict:
        return asdict(self)


def train_backend(
    rules: TokenizerRecipe, texts: Iterable[str], *, encoder: bool = False
) -> Tokenizer:
    """Train a tokenizer in which `<|endoftext|>` (id 0) ends a document; or an encoder's. This
    imports no transformers.

    bpe: byte-level (Radford et al. 2019, the GPT-2 scheme), all 256 bytes in the alphabet, so
    nothing is unknown. character: one token per distinct character of the texts, and `<|unknown|>`
    for others.

    Args:
        rules: Its kind, size and how it splits.
        texts: Training documents, read once.
        encoder: Has `ENCODER_TOKENS` instead of `<|endoftext|>`; [SEP] ends a document, and a text
            by itself becomes `[CLS] text [SEP]`.

    Raises:
        DataError: the texts do not support so large a vocabulary; says how large a one they do.
    """
    specials = ENCODER_TOKENS if encoder else (END_OF_TEXT,)
    if rules.kind == "character":
        return _with_frame(_character_tokenizer(texts, specials))
    tokenizer = _bpe_tokenizer(rules, texts, specials)
    reached, wanted = tokenizer.get_vocab_size(), rules.vocabulary or 0
    if reached < wanted and rules.fewer == "error":
        raise DataError(
            f"tokenizer.vocabulary={wanted} is more than the training text supports: with pairs"
            f" seen at least {rules.min_frequency} times it gives {reached} entries. Use"
            f" tokenizer.vocabulary={reached} or less, a lower tokenizer.min_frequency, or more"
            " text."
        )
    return _with_frame(tokenizer)


def _bpe_tokenizer(
    rules: TokenizerRecipe, texts: Iterable[str], specials: tuple[str, ...]
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if rules.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if rules.split_digits
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=rules.vocabulary or 0,
        min_frequency=rules.min_frequency,
        special_tokens=[*specials],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces: Iterator[str] = (
        piece for text in texts for piece in text_pieces(text, LEARNED_PIECE_CHARACTERS)
    )
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer


def num_cut_words(text: str) -> int:
    """Return how many words of a text are so long that BPE learns from their parts."""
    pieces = text_pieces(text, LEARNED_PIECE_CHARACTERS)
    are_full = (len(piece) == LEARNED_PIECE_CHARACTERS * LONGEST_PIECE for piece in pieces)
    return sum(is_full for is_full, _ in groupby(are_full))


def _character_tokenizer(texts: Iterable[str], specials: tuple[str, ...]) -> Tokenizer:
    """A BPE model without merges: every character is a token, in linear time."""
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    vocabulary = {
        token: number for number, token in enumerate([*specials, UNKNOWN, *sorted(characters)])
    }
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False)
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([*specials, UNKNOWN])
    return tokenizer


def _with_frame(tokenizer: Tokenizer) -> Tokenizer:
    """Set what stands around a text by itself: of an encoder `[CLS]` and `[SEP]`, of others
    nothing. transformers would set the latter, which changes the tokenizer's fingerprint.
    """
    if _is_encoder(tokenizer):
        ids = [(token, tokenizer.token_to_id(token)) for token in (CLS_TOKEN, SEP_TOKEN)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS_TOKEN} $A {SEP_TOKEN}",
            pair=f"{CLS_TOKEN} $A {SEP_TOKEN} $B {SEP_TOKEN}",
            special_tokens=ids,
        )
    elif tokenizer.post_processor is None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A", pair="$A:0 $B:1", special_tokens=[]
        )
    return tokenizer


def as_transformers(tokenizer: Tokenizer) -> "PreTrainedTokenizerFast":
    """Return a tokenizer that `train_backend` made in the form of transformers."""
    # Takes half a second, and what only prepares tokens does without.
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    roles = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    if _is_encoder(tokenizer):
        roles = {"bos_token": CLS_TOKEN, "eos_token": SEP_TOKEN, "pad_token": PAD_TOKEN}
        roles |= {"cls_token": CLS_TOKEN, "sep_token": SEP_TOKEN, "mask_token": MASK_TOKEN}
    if unknown_id(tokenizer) is not None:
        roles["unk_token"] = UNKNOWN
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **roles
    )


def _is_encoder(tokenizer: Tokenizer) -> bool:
    return tokenizer.token_to_id(END_OF_TEXT) is None


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of the token that ends a document."""
    return tokenizer.get_vocab()[SEP_TOKEN if _is_encoder(tokenizer) else END_OF_TEXT]


def begin_of(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return begin-of-text where a published tokenizer puts it before a text by itself."""
    with_special, without = (tokenizer.encode("a", add_special_tokens=add) for add in (True, False))
    if with_special[:1] != [tokenizer.bos_token_id] or without[:1] == with_special[:1]:
        return ()
    return (with_special[0],)


def require_fast(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raises DataError for a published tokenizer that the library `tokenizers` does not know."""
    if not tokenizer.is_fast:
        raise DataError(
            f"the tokenizer {tokenizer.name_or_path or 'of this model'} has no fast version"
            " (tokenizer.json), which is needed. Convert it first."
        )


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of characters that training text lacked; None where bytes are tokens."""
    found: int | None = tokenizer.token_to_id(UNKNOWN)
    return found


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerFast | Tokenizer") -> str:
    """SHA-256 of tokenizer.json with sorted keys: equal for equal tokenizers, whatever wrote the
    file.
    """
    content = json.loads(backend_of(tokenizer).to_str())
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def round_trips(tokenizer: "PreTrainedTokenizerFast | Tokenizer", texts: list[str]) -> bool:
    """Whether every text comes back exactly from its ids, but for what the tokenizer's normalizer
    says.
    """
    backend = backend_of(tokenizer)
    normalizer = backend.normalizer
    return all(
        backend.decode(ids, skip_special_tokens=False)
        == (normalizer.normalize_str(text) if normalizer else text)
        for text, ids in zip(texts, batch_encoder(tokenizer)(texts), strict=True)
    )


def measure_tokenizer(
    tokenizer: Tokenizer,
    kind: str,
    train: TokenSplit,
    validation: TokenSplit,
    samples: list[str],
) -> TokenizerReport:
    """Compression on whole splits, unknown share, round trip on samples, verdict."""
    characters_per_token, bytes_per_token = _per_token(validation)
    train_characters_per_token, train_bytes_per_token = _per_token(train)
    unknown = unknown_id(tokenizer)
    num_unknown = 0 if unknown is None else int(np.count_nonzero(validation.tokens_N == unknown))
    return TokenizerReport(
        kind=kind,
        vocabulary=tokenizer.get_vocab_size(),
        characters_per_token=characters_per_token,
        bytes_per_token=bytes_per_token,
        train_characters_per_token=train_characters_per_token,
        train_bytes_per_token=train_bytes_per_token,
        unknown_share=num_unknown / (validation.num_tokens - validation.num_documents),
        round_trip=round_trips(tokenizer, samples),
        verdict=verdict(kind, characters_per_token),
        fingerprint=tokenizer_fingerprint(tokenizer),
    )


def _per_token(split: TokenSplit) -> tuple[float, float]:
    num_text_tokens = split.num_tokens - split.num_documents
    return split.num_characters / num_text_tokens, split.num_bytes / num_text_tokens


def verdict(kind: str, characters_per_token: float) -> str:
    """fail, low, good or excellent by the guide's gates; `exempt` for a character tokenizer."""
    if kind == "character":
        return "exempt"
    return next(word for limit, word in _VERDICTS if characters_per_token < limit)


def check_compression(report: TokenizerReport) -> None:
    """Refuse a BPE tokenizer that hardly compresses.

    Text whose characters take several bytes (Chinese, Korean) is judged by bytes per token, where
    the guide's gate on characters would refuse good tokenizers.

    Raises:
        DataError: below 1.5 characters and 1.5 bytes per token.
    """
    if (
        report.kind == "bpe"
        and max(report.characters_per_token, report.bytes_per_token) < FAIL_BELOW
    ):
        raise DataError(
            f"the tokenizer packs only {report.characters_per_token:.2f} characters into a token on"
            f" validation text; below {FAIL_BELOW} training is refused. Raise tokenizer.vocabulary"
            f" (now {report.vocabulary}), train on more text, or use tokenizer.kind=character on"
            " purpose."
        )


def refuse_unknown_ids(
    what: str, ids_N: Array, tokenizer: PreTrainedTokenizerBase, rows: int
) -> None:
    """Check that a model can read token ids.

    Args:
        what: Holds them, in words.
        ids_N: Token ids [N].
        tokenizer: Gave them.
        rows: Rows of the model's embedding.

    Raises:
        DataError: an id has no row. Names its token.
    """
    largest = int(ids_N.max(initial=0))
    if largest < rows:
        return
    raise DataError(
        f"{what} needs the token {tokenizer.convert_ids_to_tokens(largest)!r} (id {largest}),"
        f" {int((ids_N == largest).sum())} x, but the model's embedding has {rows} rows, of the"
        f" ids 0 to {rows - 1}. Take what spells this token out of the text, or use a tokenizer"
        " and a model that belong together."
    )
