"""Names that may be files of other tools."""

from pathlib import Path

import pytest

from brimful.integrations.other_tools.candidates import is_candidate


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json", "training_args.bin"])
def test_a_file_with_the_ending_of_a_tool_may_be_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert not is_candidate(str(path))

    path.touch()
    assert is_candidate(str(path))


def test_the_name_of_a_recipe_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").touch()

    assert not is_candidate("quickstart")
