"""Values of another tool's configuration, read one by one: given in the file, or its default.

Whoever asks for a key learns its value, and the settings remember that it was asked for. What is
read while a fact is worked out is what says that fact.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from brimful.base.text import shortened
from brimful.base.types import Json, Texts

_TEMPLATE = re.compile(r"\$\{|\{\{|\{%|\$\w")
T = TypeVar("T")


@dataclass(frozen=True)
class Default:
    """The value of a key that a file does not give.

    Attributes:
        value: Plain.
        where: File of the tool's repository in which it was read.
    """

    value: Any
    where: str


@dataclass(frozen=True)
class UnknownSetting:
    """A key whose value decides memory or time and is not understood."""

    key: str
    value: Any
    reason: str

    def describe(self) -> str:
        """Return `key: value: reason`."""
        return f"{self.key}: {shown(self.value)}: {self.reason}"


class NotUnderstood(Exception):
    """A fact cannot be worked out; the settings know why."""


class Settings:
    """The keys of a file with a tool's defaults.

    Args:
        given: The file's keys, already flat where the tool's keys are dotted.
        defaults: The tool's defaults.
        native_bf16: Whether the device has bf16: some tools ask it for their default.
    """

    def __init__(
        self, given: Json, defaults: Mapping[str, Default], *, native_bf16: bool = True
    ) -> None:
        self.native_bf16 = native_bf16
        self._given, self._defaults = given, defaults
        self._read: dict[str, None] = {}
        self.unknown: dict[str, UnknownSetting] = {}
        self.assumed: dict[str, str] = {}

    def __getitem__(self, key: str) -> Any:
        """Return the given value, or the default where the file has none or null.

        Raises:
            NotUnderstood: the value is a template that another program would fill in.
        """
        self._read[key] = None
        value = self._given.get(key)
        if value is None:
            return self._defaults[key].value
        if isinstance(value, str) and _TEMPLATE.search(value):
            self.refuse(key, "a template; write the value that is meant")
        return value

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Note that a key is not understood.

        Raises:
            NotUnderstood: always.
        """
        self.note_unknown(key, reason)
        raise NotUnderstood(key)

    def note_unknown(self, key: str, reason: str) -> None:
        """Note that a key is not understood, and go on."""
        value = self._given.get(key)
        if value is None and key in self._defaults:
            value = self._defaults[key].value
        self.unknown.setdefault(key, UnknownSetting(key, value, reason))

    def assume(self, key: str, what: str) -> None:
        """Note what is assumed of a key that leaves it open, in words."""
        self.assumed[key] = f"{key}: {shown(self._given.get(key))}: {what}"

    def is_given(self, key: str) -> bool:
        """Return whether the file sets a key to anything but null."""
        return self._given.get(key) is not None

    def flag(self, key: str) -> bool:
        """Return a truth value; YAML's and JSON's, or a text that says true or false."""
        value = self[key]
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return bool(value)
        return bool(self.refuse(key, "must be true or false"))

    def count(self, key: str) -> int:
        """Return a whole number above 0."""
        value = self[key]
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
            self.refuse(key, "must be a whole number above 0")
        return int(value)

    def number(self, key: str) -> float:
        """Return a number that is not below 0."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            self.refuse(key, "must be a number from 0 on")
        return float(value)

    def share(self, key: str) -> float:
        """Return a number from 0 to below 1."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.refuse(key, "must be a number from 0 to below 1")
        return float(value)

    def one_of(self, key: str, meanings: Mapping[Any, T]) -> T:
        """Return what a value means by a table."""
        value = self[key]
        if isinstance(value, list | dict) or value not in meanings:
            known = ", ".join(shown(each) for each in meanings)
            self.refuse(key, f"not among those that brimful can trace ({known})")
        return meanings[value]

    def names(self, key: str) -> tuple[str, ...]:
        """Return names, given as a list or separated by commas."""
        value = self[key]
        words = value.split(",") if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            self.refuse(key, "must be names, as a list or separated by commas")
        return tuple(word.strip() for word in words if word.strip())

    def watched(self, work_out: Callable[["Settings"], T]) -> tuple[T, str]:
        """Return a fact and what says it: `key: value` of all keys read, defaults marked."""
        self._read.clear()
        fact = work_out(self)
        return fact, ", ".join(self._saying(key) for key in self._read)

    def _saying(self, key: str) -> str:
        if self.is_given(key):
            return f"{key}: {shown(self._given[key])}"
        return f"{key}: {shown(self._defaults[key].value)} (default)"


Fact = Callable[[Settings], Any]
"""How a fact of a job follows from the keys of a file."""


def _of_one_key(read: Callable[[Settings, str], T]) -> Callable[[str], Callable[[Settings], T]]:
    def fact_of(key: str) -> Callable[[Settings], T]:
        return lambda settings: read(settings, key)

    return fact_of


value_of = _of_one_key(Settings.__getitem__)
flag_of, count_of = _of_one_key(Settings.flag), _of_one_key(Settings.count)
number_of = _of_one_key(Settings.number)
"""Each returns a fact of a job that is the value of one key."""


def model_in(key: str, rule: str = "must name a model") -> Fact:
    """Return the fact of which model is trained, which a key names."""

    def name_of(settings: Settings) -> str:
        name = settings[key]
        if not isinstance(name, str):
            settings.refuse(key, rule)
        return str(name)

    return name_of


def because(reason: str, keys: str) -> Texts:
    """Return the reason for which none of these keys can be planned with, by key."""
    return dict.fromkeys(keys.split(), reason)


def shown(value: Any) -> str:
    """Return a plain value as YAML writes it, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return shortened("[" + ", ".join(shown(each) for each in value) + "]", 60)
    return shortened(str(value), 60)


def words(text: str) -> frozenset[str]:
    """Return the words of a text, as keys."""
    return frozenset(text.split())


def is_off(value: Any) -> bool:
    """Return whether a value switches nothing on: null, false, zero, or empty."""
    return value is None or value is False or value in (0, "", [], {})


def defaults_at(where: str, values: Json) -> dict[str, Default]:
    """Return defaults that were all read in one file."""
    return {key: Default(value, where) for key, value in values.items()}


def matches(key: str, names: Iterable[str], prefixes: Iterable[str]) -> bool:
    """Return whether a key is one of the names, or begins with one of the prefixes."""
    return key in names or key.startswith(tuple(prefixes))
