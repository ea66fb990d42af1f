"""The sections of the data and of the tokenizer that is trained on them."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.recipe.base import Auto, PositiveInt, Section, Share


class TokenizerRecipe(Section):
    """How text becomes tokens. Trained on training documents only."""

    kind: Literal["bpe", "character"] = Field(
        "bpe",
        description=(
            "bpe: byte-level BPE trained here; character: one token per distinct character."
        ),
    )
    vocabulary: Annotated[int, Field(ge=257, le=1 << 24)] | None = Field(
        None,
        description="Entries in total, special tokens and the 256 bytes included (bpe: required).",
    )
    min_frequency: PositiveInt = Field(
        2, description="A pair merges only when seen this often (bpe)."
    )
    fewer: Literal["error", "accept"] = Field(
        "error",
        description="What becomes of a text that supports fewer entries than vocabulary (bpe).",
    )
    split_digits: bool = Field(
        False,
        description=(
            "Every digit is a token of its own, which makes arithmetic easier to learn (bpe)."
        ),
    )
    lowercase: bool = Field(
        False,
        description=(
            "Capital letters become small ones first: fewer words to learn, for an encoder of texts"
            " (bpe)."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _bpe_has_a_size(self) -> Self:
        if self.kind == "bpe" and self.vocabulary is None:
            raise ValueError(
                "vocabulary is required for kind bpe, for example tokenizer.vocabulary=4096"
            )
        if self.kind == "character" and self.vocabulary is not None:
            raise ValueError(
                "vocabulary belongs to kind bpe; a character tokenizer has one entry per character"
                " of the text"
            )
        if self.kind == "character" and self.split_digits:
            raise ValueError(
                "split_digits belongs to kind bpe; a character tokenizer splits everything"
            )
        if self.kind == "character" and self.lowercase:
            raise ValueError(
                "lowercase belongs to kind bpe; a character tokenizer keeps every character"
            )
        return self


TABLE_ENDS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
"""How names of files end that hold rows with columns; one of PACKED_ENDS may follow."""
PACKED_ENDS = (".gz", ".bz2", ".xz", ".zst")
"""How names of compressed files end."""


SplitName = Literal["train", "validation", "test"]
SplitNames = Mapping[SplitName, str]
"""What a source calls its splits; empty: their usual names."""


def unpacked_name(name: str) -> str:
    """Return a file's name in small letters, without the end that says how it is compressed."""
    name = name.lower()
    return next((name.removesuffix(end) for end in PACKED_ENDS if name.endswith(end)), name)


_KEYS_OF_EXAMPLES = (
    "format",
    "columns",
    "template",
    "chat_template",
    "template_options",
    "added_tokens",
    "turns",
    "loss_on",
    "leave_out",
    "bad_rows",
)
"""Keys of `data` that nothing but the reader of prompts and answers reads."""


class DataRecipe(Section):
    """Where the text comes from and how it is split and laid out."""

    path: str | list[str] = Field(
        description=(
            "Hub id, builtin:NAME, or file or folder: tables (jsonl, json, csv, tsv, parquet), txt"
            " and other text (.gz, .bz2, .xz, .zst too), save_to_disk; several as a list."
        )
    )
    format: Literal[
        "auto",
        "prompt",
        "messages",
        "question",
        "mbpp",
        "alpaca",
        "conversations",
        "text",
        "pair",
        "chatgpt",
    ] = Field("auto", description="method sft: how a row holds an example; auto: by its columns.")
    columns: dict[str, str] = Field(
        {},
        description=(
            "method sft: other names of the format's columns, such as {instruction: question,"
            " output: solution}."
        ),
    )
    template: Literal["auto", "chat", "plain"] = Field(
        "auto",
        description=(
            "method sft: chat: the tokenizer's chat template, a prompt that is text as a user's"
            " message; plain: text as it stands, messages under headings; auto: chat where there is"
            " one."
        ),
    )
    chat_template: str | None = Field(
        None,
        description=(
            "method sft: file with a chat template (Jinja), instead of the tokenizer's; stored with"
            " the model."
        ),
    )
    template_options: dict[str, bool | int | str] = Field(
        {},
        description=(
            "method sft: variables that the chat template reads, such as {enable_thinking: false};"
            " stored with the model as defaults."
        ),
    )
    added_tokens: list[str] = Field(
        [],
        description=(
            "method sft: tokens that the model is to learn, such as [<search>], as rows spell them;"
            " added to the tokenizer where it lacks them."
        ),
    )
    turns: Literal["each", "last"] = Field(
        "each",
        description=(
            "method sft: answers of a conversation that are learned: each, with what stands before"
            " it when it is generated, or the last one."
        ),
    )
    loss_on: Literal["completion", "all"] = Field(
        "completion", description="method sft: which tokens are targets."
    )
    leave_out: list[str] = Field(
        [],
        description=(
            "method sft: columns, fields of messages and roles that are left out on purpose, such"
            " as [system] or [weight]."
        ),
    )
    config_name: str | None = Field(
        None, description="Configuration of a hub data set, such as wikitext-103-raw-v1."
    )
    revision: str | None = Field(None, description="Commit of a hub data set, to pin it.")
    text_column: str | int = Field(
        "text",
        description=(
            "Column that holds the text, where rows have columns: its name, or its number from 0."
        ),
    )
    label_column: str | int = Field(
        "label", description="method classify: column that holds the label, by name or number."
    )
    header: bool | Auto = Field(
        "auto",
        description=(
            "csv and tsv: whether the first row names the columns; auto: it does where no column is"
            " given by number."
        ),
    )
    delimiter: str = Field(
        "auto",
        min_length=1,
        description=(
            "csv: what stands between fields, such as ';'; auto: a comma, or what parts the first"
            " rows alike where there is none."
        ),
    )
    encoding: str = Field(
        "utf-8",
        description=(
            "Of text files: a Python codec, such as latin-1; auto: UTF-8 with or without BOM,"
            " UTF-16, else cp1252."
        ),
    )
    file_type: Literal["auto", "txt", "jsonl", "json", "csv", "tsv"] = Field(
        "auto", description="Format of files, all of a folder included; auto: by their names' ends."
    )
    document_start: str | None = Field(
        None,
        description="Regular expression: in plain text, a line that matches starts a new document.",
    )
    splits: dict[SplitName, str] = Field(
        {},
        description=(
            "The source's own names of its splits, such as {train: train_sft, test: test_sft};"
            " others are not used. Empty: by the usual names."
        ),
    )
    bad_rows: Literal["stop", "drop"] = Field(
        "stop",
        description=(
            "method sft: a row that cannot be learned (no answer, an unknown role) stops the run,"
            " or is left out and listed; of more than a tenth of the rows it stops always."
        ),
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="Share held out for validation where the source has no such split."
    )
    test: Share = Field(
        0.0, description="Share held out for test where the source has no such split."
    )
    split_by: Literal["document", "position"] = Field(
        "document",
        description=(
            "document: by hash of each document's text (one document, or few: by position);"
            " position: the last shares of the text."
        ),
    )
    duplicates: Literal["report", "drop"] = Field(
        "report",
        description=(
            "Validation and test documents that also stand in training: report only (method"
            " classify scores them apart), or drop them there."
        ),
    )
    layout: Literal["stream", "document"] = Field(
        "stream",
        description=(
            "stream: documents end to end, cut into full sequences; document: one document per"
            " sequence, padded."
        ),
    )
    long_documents: Literal["error", "truncate", "split", "drop"] = Field(
        "error",
        description=(
            "layout document, and examples of method sft (which cannot be split): what to do with"
            " one longer than sequence_length."
        ),
    )
    masked_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15, description="method mlm: share of the tokens that are to be predicted."
    )
    max_documents: PositiveInt | None = Field(None, description="Read at most this many documents.")
    cache_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description=(
            "method pretrain, for text whose tokens do not fit the disk: so many GiB of training"
            " tokens are kept, those of other files are made again; null: all are kept."
        ),
    )
    shuffled_files: PositiveInt = Field(
        4, description="With data.cache_gib: files whose sequences are shuffled with each other."
    )

    @pydantic.field_validator("document_start")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value

    @pydantic.model_validator(mode="after")
    def _plain_has_no_chat_template(self) -> Self:
        if self.template == "plain" and self.has_own_chat_template:
            raise ValueError(
                "template=plain uses no chat template: leave chat_template and template_options"
                " out, or set template=chat"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _training_has_text_left(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation {self.validation} + test {self.test} leave no text to train on"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _cache_is_for_streams(self) -> Self:
        if self.cache_gib is None:
            return self
        for key, value in {
            "layout": "stream",
            "split_by": "document",
            "max_documents": None,
        }.items():
            if getattr(self, key) != value:
                raise ValueError(
                    f"with data.cache_gib files are read one at a time, so {key} has to be"
                    f" {'left out' if value is None else value}"
                )
        return self

    def refuse_keys_of_examples(self, method: str) -> None:
        """Raise ValueError if a key is given that only rows of prompts and answers have."""
        for key in _KEYS_OF_EXAMPLES:
            if getattr(self, key) != DataRecipe.model_fields[key].default:
                raise ValueError(f"data.{key} is for method sft, not for {method}; leave it out")

    @property
    def has_own_chat_template(self) -> bool:
        """Whether the chat template differs from the tokenizer's."""
        return self.chat_template is not None or bool(self.template_options)

    @property
    def paths(self) -> tuple[str, ...]:
        if isinstance(self.path, str):
            return (self.path,)
        return tuple(self.path)
