"""Tables that come with brimful as TOML files."""

import hashlib
import tomllib
from importlib import resources

from brimful.base.kept_values import kept_value
from brimful.base.types import JsonDict


def shipped_table(package: str, name: str) -> JsonDict:
    """Return the content of a file of a package, which takes some ten milliseconds to parse for the
    first time.

    Args:
        package: Such as `brimful.hardware`.
        name: Name of the file, such as `catalog.toml`.
    """
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    values: JsonDict = kept_value(f"{package}.{name}", digest, lambda: tomllib.loads(text))
    return values
