"""Small letters, for models that were pre-trained on them; shouting in capitals is then lost as a
hint.
"""


def STEP(text: str) -> str:  # noqa: N802 - looked up by this name
    """The text in small letters, by Unicode's rules for no language in particular."""
    return text.lower()
