"""Which cases of a test are long: all but those that `@pytest.mark.long_but` names."""

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector,
) -> Generator[None, list[pytest.Function], object]:
    """Mark them while all cases of the test are at hand, whichever were asked for."""
    made = yield
    cases = made if isinstance(made, list) else []
    quick = cases[0].get_closest_marker("long_but") if cases else None
    if quick is not None:
        ids = {case.name[len(case.originalname) + 1 : -1]: case for case in cases}
        if unknown := [name for name in quick.args if name not in ids]:
            raise collector.CollectError(
                f"{cases[0].originalname}: long_but names {unknown}, which are no cases of the test."
                f" These are: {[*ids]}"
            )
        for name in ids.keys() - set(quick.args):
            ids[name].add_marker("long")
    return made
