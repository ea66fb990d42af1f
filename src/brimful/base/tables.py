"""Tables that come with brimful as TOML files."""

import hashlib
import tomllib
from importlib import resources
from typing import Any

from brimful.base.kept_values import kept_value


def shipped_table(package: str, name: str) -> dict[str, Any]:
    """Return the content of a file of a package, which takes some ten milliseconds to parse for the
    first time.

    Args:
        package: Such as `brimful.hardware`.
        name: Name of the file, such as `catalog.toml`.
    """
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    values: dict[str, Any] = kept_value(f"{package}.{name}", digest, lambda: tomllib.loads(text))
    return values
