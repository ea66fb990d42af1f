"""One sandbox for the tests of this folder."""

from collections.abc import Iterator

import pytest

from brimful.base.errors import RequestError
from brimful.base.units import MIB
from brimful.verify.isolation import ProgramLimits
from brimful.verify.sandbox import Sandbox

SHORT = ProgramLimits(seconds=1.0, memory_bytes=128 * MIB)


@pytest.fixture(scope="session", params=["landlock", "seccomp"])
def locked(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of each level that holds here."""
    try:
        sandbox = Sandbox(SHORT, level=request.param)
    except RequestError as error:
        pytest.skip(str(error))
    with sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox of the best level that holds here."""
    try:
        opened = Sandbox(SHORT)
    except RequestError as error:
        pytest.skip(str(error))
    with opened:
        yield opened
