"""What to type where a package is missing that only an extra of brimful brings."""

import shlex
from importlib import metadata


def how_to_install(extra: str) -> str:
    """Return the command that installs what an extra stands for, as a sentence. It names the
    packages themselves, so that it works wherever brimful came from.
    """
    try:
        listed = metadata.requires("brimful") or []
    except metadata.PackageNotFoundError:
        listed = []
    marker = f'extra == "{extra}"'
    wanted = [each.partition(";")[0].strip() for each in listed if marker in each]
    if not wanted:
        return f"It comes with brimful's extra {extra}."
    return f"It comes with brimful's extra {extra}, or alone: pip install {shlex.join(wanted)}"
