"""Steps that prepare texts: found by name, applied in order, known by the versions of what they
stand on.
"""

import importlib.metadata
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fixture_types import Refuses

from brimful.base.discover import module_in, names_in
from brimful.base.errors import BrimfulError, RequestError
from brimful.data import preparation as module
from brimful.data.preparation import preparation, preparation_identity, preparation_notes
from brimful.recipe.labels import PREPROCESS_PACKAGE

STEPS = names_in(PREPROCESS_PACKAGE, ".py")


def _step(name: str) -> Callable[[str], str]:
    """A step, or a skip where its library is not installed."""
    for library in getattr(module_in(PREPROCESS_PACKAGE, name, "step"), "LIBRARIES", ()):
        try:
            importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"the step {name} needs {library}")
    return preparation([name])


def test_steps_are_applied_in_their_order() -> None:
    assert preparation(["spaces", "lowercase"])("  Hello \n THERE ") == "hello there"
    assert preparation(["lowercase", "nfkc"])("K\u212a") == "kk"
    assert preparation(["nfkc"])("\u2126") == "\u03a9"


def test_no_step_leaves_texts_as_they_are() -> None:
    assert preparation([])(" As\tit is ") == " As\tit is "


def test_an_unknown_step_is_told_with_the_nearest(refuses: Refuses) -> None:
    with refuses(BrimfulError, names=["'spaces'"]):
        preparation(["space"])


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "text", ["", " ", "plain", "Việt Nam 😂", "a\nb\tc", "e\u0301", "x" * 5000]
)
def test_every_step_makes_text_of_any_text_and_of_its_own_result_the_same(
    name: str, text: str
) -> None:
    step = _step(name)
    once = step(text)

    assert isinstance(once, str)
    assert step(once) == once


def test_the_identity_names_the_versions_of_a_steps_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        module,
        "module_in",
        lambda *_: SimpleNamespace(STEP=str, LIBRARIES=("numpy", "xxhash"), EXTRA="x"),
    )
    numpy, xxhash = (importlib.metadata.version(name) for name in ("numpy", "xxhash"))

    assert preparation_identity(["any"]) == {"any": f"numpy {numpy}, xxhash {xxhash}"}


def test_brimfuls_own_steps_stand_on_nothing() -> None:
    assert preparation_identity(["nfc", "lowercase"]) == {"nfc": "", "lowercase": ""}


def test_equal_versions_are_no_news_and_others_are_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        module, "module_in", lambda *_: SimpleNamespace(STEP=str, LIBRARIES=("numpy",), EXTRA="x")
    )
    here = preparation_identity(["any"])["any"]

    assert preparation_notes({"any": here}) == []
    (note,) = preparation_notes({"any": "numpy 0.0.1"})
    assert "numpy 0.0.1 when the model was trained" in note
    assert "pip install 'numpy==0.0.1'" in note


def test_a_missing_library_is_told_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.setattr(
        module,
        "module_in",
        lambda *_: SimpleNamespace(STEP=str, LIBRARIES=("no-such-library",), EXTRA="vietnamese"),
    )

    with refuses(RequestError, names=["pip install 'underthesea"]):
        preparation(["any"])
    with refuses(RequestError):
        preparation_identity(["any"])
