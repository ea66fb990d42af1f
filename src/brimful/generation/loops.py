"""Whether a text has run into a loop: the same words again and again, as small models write them
when nothing ends an answer (Holtzman et al. 2020, arXiv 1904.09751, section 4.3).
"""

import re
from collections.abc import Hashable, Sequence

MOST_PERIOD = 64
"""Tokens or words of the longest part that is looked for."""
LEAST_TIMES, LEAST_TOKENS = 6, 48
"""An end of so many repetitions, and of so many tokens, is a loop. A row of zeros is shorter."""
LEAST_TIMES_IN_WORDS, LEAST_WORDS = 4, 16
"""Least repetitions and words of a loop in a finished text, whose numbers may differ: `243 + 1 =
244. 244 + 1 = 245.`
"""

_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*|[^\w\s]")


def ends_in_loop(token_ids: Sequence[int]) -> bool:
    """Return whether the last tokens are one part again and again, exactly."""
    return _repeats(token_ids, LEAST_TIMES, LEAST_TOKENS)


def text_ends_in_loop(text: str) -> bool:
    """Return whether a text's last words are the same again and again, whatever their numbers."""
    words = ["0" if word[0].isdigit() else word for word in _WORD.findall(text)]
    # The last repetition may be cut anywhere.
    return _repeats(words, LEAST_TIMES_IN_WORDS, LEAST_WORDS)


def _repeats(items: Sequence[Hashable], times: int, least: int) -> bool:
    for period in range(1, min(MOST_PERIOD, len(items) // times) + 1):
        length = max(times * period, least)
        if length <= len(items) and items[-length + period :] == items[-length:-period]:
            return True
    return False
