"""Unicode normalisation form C: one code point where there is one, so that equal-looking text is
equal (Unicode Standard Annex 15).
"""

import unicodedata


def STEP(text: str) -> str:  # noqa: N802 - looked up by this name
    """The text in form C."""
    return unicodedata.normalize("NFC", text)
