"""One space between words: any run of white space, line ends too, becomes one; none at the ends."""


def STEP(text: str) -> str:  # noqa: N802 - looked up by this name
    """The text with single spaces. What counts as white space is Unicode's: no-break and
    ideographic spaces do, zero-width ones do not.
    """
    return " ".join(text.split())
