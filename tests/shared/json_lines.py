"""Files of rows as tests write them."""

import json
from collections.abc import Iterable
from pathlib import Path


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """Write each row as a line of JSON, and return where."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
