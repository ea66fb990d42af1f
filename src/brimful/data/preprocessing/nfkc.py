"""Unicode normalisation form KC: also what only looks different becomes equal, such as full-width,
circled and bold mathematical letters (Annex 15).
"""

import unicodedata


def STEP(text: str) -> str:  # noqa: N802 - looked up by this name
    """The text in form KC. Some meaning goes with the looks: `2²` becomes `22`, `™` becomes
    `TM`.
    """
    return unicodedata.normalize("NFKC", text)
