"""What models of transformers call their cache: `cache` from 5.24 on, `past_key_values` before.

Code here calls it `cache`. Models that brimful defines take it by both names, so that they run
inside of either version's `generate`.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from transformers.modeling_outputs import BaseModelOutputWithPast

_BEFORE_5_24 = "past_key_values"
CACHE_NAME = (
    _BEFORE_5_24 if _BEFORE_5_24 in BaseModelOutputWithPast.__dataclass_fields__ else "cache"
)
"""The name in the installed version: of the parameter, of the output, and of what `generate` hands
from token to token.
"""

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def takes_cache(forward: _Forward) -> _Forward:
    """Let a `forward` with a parameter `cache` take it as `past_key_values`, too."""

    @functools.wraps(forward)
    def by_either_name(*args: Any, **kwargs: Any) -> Any:
        if _BEFORE_5_24 in kwargs:
            kwargs["cache"] = kwargs.pop(_BEFORE_5_24)
        return forward(*args, **kwargs)

    return by_either_name  # type: ignore[return-value]
