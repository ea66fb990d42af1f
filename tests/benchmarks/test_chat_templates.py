"""What is learned of conversations equals what TRL's templates for training mark, token for token,
or differs for one of the reasons that the benchmark lists.
"""

import pytest

from brimful.base.errors import DataError
from chat_templates import CASES, FOLDER, REASONS, compared, names, of_brimful, tokenizer_of

EXPLAINED = {*REASONS, "="} - {"?"}
REFUSED = {"cohere", "cohere2", "gemma", "gemma3"}
"""Templates that demand that a user begins."""


@pytest.mark.parametrize("case", CASES)
def test_every_answer_is_learned_as_trl_does_or_for_a_reason(case: str) -> None:
    found = {name: compared(name, case) for name in names()}
    assert len(found) > 35
    assert not {name: each for name, each in found.items() if not {*each.letters} <= EXPLAINED}
    is_plain = case in {"single", "two turns"}
    assert not (is_plain and [name for name, each in found.items() if {*each.letters} & {*"qrx"}])


def test_what_transformers_renders_of_a_conversation_begun_by_the_assistant_is_learned() -> None:
    """And what a template refuses ends in its own words."""
    letters = {name: compared(name, "assistant first").letters for name in names()}
    assert {name for name, found in letters.items() if found == "x"} == REFUSED
    for name in REFUSED:
        tokenizer = tokenizer_of((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
        with pytest.raises(DataError, match=r"\(assistant, user, assistant\).*must alternate"):
            of_brimful(tokenizer, CASES["assistant first"])
