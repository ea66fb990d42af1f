"""Preparation of texts before they become tokens: steps found by name, the same ones in training,
evaluation and prediction.

A step is a file in `data/preprocessing` with `STEP: (text) -> text`. One that stands on libraries
names their distributions in `LIBRARIES` and the extra that brings them in `EXTRA`: what a step does
can change with their version, so a run keeps the versions it was trained with.
"""

import importlib.metadata
from collections.abc import Callable, Sequence
from types import ModuleType

from brimful.base.discover import module_in
from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.types import Texts
from brimful.recipe.labels import PREPROCESS_PACKAGE

Prepare = Callable[[str], str]


def preparation(names: Sequence[str]) -> Prepare:
    """One function that applies the steps of these names in their order; none of them leaves a text
    as it is.

    Raises:
        BrimfulError: no step of such a name.
        RequestError: the library of a step is not installed; says how to install it.
    """
    steps = [_step(name) for name in names]
    if not steps:
        return str  # gives back the very text
    if len(steps) == 1:
        return steps[0]

    def prepare(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return prepare


def preparation_identity(names: Sequence[str]) -> Texts:
    """What each step stands on here, to be kept with a run: `{"vi_words": "underthesea 9.5.0,
    underthesea-core 3.3.2"}`; "" for brimful's own.

    Raises:
        BrimfulError, RequestError: as `preparation`.
    """
    return {
        name: ", ".join(
            f"{library} {version}" for library, version in _versions(name, _module(name)).items()
        )
        for name in names
    }


def preparation_notes(trained_with: Texts) -> list[str]:
    """A sentence for each step whose libraries here are not those a run was trained with.

    Args:
        trained_with: `preparation_identity` of the run.

    Raises:
        BrimfulError, RequestError: as `preparation`.
    """
    here = preparation_identity(list(trained_with))
    return [
        f"texts are prepared by the step {name} with {here[name] or 'no library'} here, but with"
        f" {then or 'no library'} when the model was trained: they may come out"
        f" otherwise.{_remedy(then)}"
        for name, then in trained_with.items()
        if here[name] != then
    ]


def _remedy(identity: str) -> str:
    """What installs `underthesea 9.5.0, underthesea-core 3.3.2`."""
    return (
        " For the same: pip install"
        f" {' '.join(repr(part.replace(' ', '==')) for part in identity.split(', '))}"
        if identity
        else ""
    )


def _module(name: str) -> ModuleType:
    return module_in(PREPROCESS_PACKAGE, name, "step of preparation")


def _step(name: str) -> Prepare:
    module = _module(name)
    _versions(name, module)
    step: Prepare = module.STEP
    return step


def _versions(name: str, module: ModuleType) -> Texts:
    """Installed versions of the libraries of a step, by distribution."""
    try:
        return {
            library: importlib.metadata.version(library)
            for library in getattr(module, "LIBRARIES", ())
        }
    except importlib.metadata.PackageNotFoundError as error:
        raise RequestError(
            f"the step {name} (labels.preprocess) needs {' and '.join(module.LIBRARIES)}, not"
            " installed here. A model that was trained with the step needs it wherever it runs."
            f" {how_to_install(module.EXTRA)}"
        ) from error
