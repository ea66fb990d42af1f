"""Things are found by the name of their file, and a wrong name is answered with the nearest."""

import pytest

from brimful.base.discover import did_you_mean, module_in, names_in
from brimful.base.errors import BrimfulError


def test_names_are_the_sorted_stems_of_the_files_with_the_suffix() -> None:
    names = names_in("brimful.base", ".py")

    assert names == sorted(names)
    assert {"errors", "units", "rundir"} <= set(names)


def test_private_files_have_no_name() -> None:
    assert "__init__" not in names_in("brimful.base", ".py")


def test_other_files_of_the_folder_have_no_name() -> None:
    assert names_in("brimful.base", ".yaml") == []


def test_a_module_is_imported_by_its_name() -> None:
    assert module_in("brimful.base", "units", "thing").GIB == 2**30


def test_a_wrong_name_is_told_with_the_nearest_and_all_known() -> None:
    known = "Known: arrays, console, discover, dotted, env, errors, .*units"
    with pytest.raises(BrimfulError, match=f"'unit' - did you mean 'units'. {known}"):
        module_in("brimful.base", "unit", "thing")


def test_a_name_with_a_path_in_it_is_no_name() -> None:
    with pytest.raises(BrimfulError, match=r"unknown thing 'units\.evil'"):
        module_in("brimful.base", "units.evil", "thing")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("learning_rat", " - did you mean 'learning_rate'?"), ("xyz", "."), ("", ".")],
)
def test_only_a_close_name_is_suggested(wrong: str, said: str) -> None:
    assert did_you_mean(wrong, ["layers", "learning_rate"]) == said
