"""The tokenizer of a published model. Nothing here needs torch."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from brimful.base.env import hub_is_offline
from brimful.base.errors import PlanError
from brimful.base.manifest import require_sound
from brimful.base.text import reason_of
from brimful.model.quiet import without_progress_bars


def load_tokenizer(
    source: str | Path, *, trust_custom_code: bool = False, ends_texts: bool = True
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a published model.

    Args:
        ends_texts: The model writes texts, so its tokenizer needs an end-of-text token.

    Raises:
        PlanError: there is none, it cannot be read, or it has no end-of-text token.
    """
    if Path(source).is_dir():
        require_sound(Path(source))
    try:
        with without_progress_bars():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                source, trust_remote_code=trust_custom_code
            )
        tokenizer("a")  # settings of wrong types fail at the first text
    except Exception as error:  # the library's network, file and parsing layers raise any class
        raise unreadable("tokenizer", source, error) from error
    if ends_texts and tokenizer.eos_token_id is None:
        raise PlanError(
            f"the tokenizer of {source} has no end-of-text token (eos_token), so no answer could"
            " end. Set one in its tokenizer_config.json."
        )
    return tokenizer


def add_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> None:
    """Give each of these an id of its own where it has none. They are tokens wherever a text spells
    them, so not special ones, which plain text spells letter by letter.
    """
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])


def unreadable(what: str, source: str | Path, error: Exception) -> PlanError:
    """Return the error for a part of a published model that a library could not read, with the
    library's reason and the next step.
    """
    reason = reason_of(error)
    if Path(source).is_dir():
        return PlanError(
            f"the {what} of {source} cannot be loaded: {reason}. A model's folder holds"
            " config.json, whole .safetensors and tokenizer.json."
        )
    offline = ""
    if hub_is_offline():
        offline = " HF_HUB_OFFLINE is set, so only models already downloaded can be used."
    return PlanError(
        f"the {what} of {source} cannot be loaded: {reason}.{offline} A local folder works too:"
        " model=FOLDER."
    )
