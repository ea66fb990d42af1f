"""Types that many rooms name, each written out here alone; those of arrays are in `arrays`."""

from collections.abc import Callable, Mapping
from typing import Any

Json = Mapping[str, Any]
"""Values by name, to be read: an object of JSON, settings, keyword arguments."""
JsonDict = dict[str, Any]
"""As `Json`, where values are added or changed."""
Numbers = Mapping[str, float]
"""Numbers by name."""
Counts = Mapping[str, int]
"""Whole numbers by name."""
Texts = Mapping[str, str]
"""Texts by name."""
Bounds = tuple[float, float]
"""The lower and the upper end of an interval."""
Progress = Callable[[str, int, int | None], None]
"""Receives (what is done, how much of it is done, of how much or None)."""
