"""The command line, called inside the test's process."""

import sys

import pytest
from command_line import Brimful, Said

from brimful import cli


@pytest.fixture
def brimful(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Brimful:
    """`brimful("train", "x.yaml")` is that command line; only what is meant for the user leaves it
    as an exit.
    """

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["brimful", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ending:
            cli.main()
        captured = capsys.readouterr()
        return Said(int(ending.value.code or 0), captured.out, captured.err)

    return call
