"""Held-out rows with the same mix of labels as the rest: within each label by hash, equal texts
together.
"""

from collections.abc import Sequence

import xxhash

from brimful.data.splits import SPLIT_SEED, SPLITS

STRATIFIED_SEED = SPLIT_SEED + 1
"""Not the seed of `split_of`: what stays in training here is split by that once more where an
encoder is pre-trained on it.
"""

_TRAIN, _VALIDATION, _TEST = SPLITS


def hold_out(
    texts: Sequence[str],
    strata: Sequence[str],
    validation: float,
    test: float,
    seed: int = STRATIFIED_SEED,
) -> list[str]:
    """The split of each row.

    Rows with equal texts form a group that stays together; it counts for the stratum of its first
    row. The groups of a stratum stand in the order of their hashes, so another row moves few: test
    takes the first that bring it closer to its share of the stratum's rows, then validation; what
    would overshoot is passed over. Where there are groups enough, each split gets at least one of
    every stratum; training comes first.

    Args:
        texts: Normalised, so that equal ones are equal.
        strata: Strata whose mix is kept, such as labels.
        validation: Share of the rows.
        test: Share of the rows.
        seed: The seed of the hash.
    """
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    of_stratum: dict[str, list[list[int]]] = {}
    for _, rows in sorted(
        (xxhash.xxh3_64_intdigest(text.encode(), seed=seed), rows) for text, rows in groups.items()
    ):
        of_stratum.setdefault(strata[rows[0]], []).append(rows)
    splits = [_TRAIN] * len(texts)
    for members in of_stratum.values():
        left, total = members, sum(map(len, members))
        needed = {_VALIDATION: validation, _TEST: test}
        wanted = [name for name, share in needed.items() if share > 0][
            : len(members) - 1
        ]  # one group stays in training
        for place, name in enumerate(sorted(wanted, key=(_TEST, _VALIDATION).index), start=1):
            taken, left = _taken(left, needed[name] * total, keep=len(wanted) - place + 1)
            for row in (row for rows in taken for row in rows):
                splits[row] = name
    return splits


def _taken(
    groups: list[list[int]], target: float, keep: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of `target` rows in all or nearly so, at least one of them, and the rest, at least
    `keep`.
    """
    taken: list[list[int]] = []
    left: list[list[int]] = []
    num_rows = 0
    for group in groups:
        if (
            len(groups) - len(taken) > keep
            and num_rows + 0.5 <= target
            and len(group) <= 2 * (target - num_rows)
        ):
            taken.append(group)
            num_rows += len(group)
        else:
            left.append(group)
    if not taken:
        taken.append(left.pop(min(range(len(left)), key=lambda number: len(left[number]))))
    return taken, left
