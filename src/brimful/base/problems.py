"""Validation errors of pydantic as lines of text for the user."""

import re
from collections.abc import Mapping
from typing import Any, get_origin

import pydantic

from brimful.base.discover import did_you_mean
from brimful.base.keys import describe_keys, section_in


def problem_lines(
    error: pydantic.ValidationError,
    root: type[pydantic.BaseModel],
    tags: tuple[str, ...] = (),
    other_names: Mapping[str, str] = {},
) -> list[str]:
    """`key.path: rule, got value` for every key in error, an unknown key with a did-you-mean.

    Args:
        error: What validating a value of `root` raised.
        root: The outermost model.
        tags: Names of the kinds a field may be of, which are no keys.
        other_names: What others call a key, and the dotted key.
    """
    rules: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for problem in error.errors():
        named = (
            str(part)
            for part in problem["loc"]
            if part not in tags
            and not str(part).startswith(("constrained-", "literal[", "function-", "list["))
        )
        path = re.sub(r"\.(int|str|float|bool)$", "", ".".join(named)) or "as a whole"
        rules.setdefault(path, []).append(_rule(problem, path, root, other_names))
        values[path] = _got(problem)
    return [
        f"{path}: {' or '.join(broken).replace(' or must be ', ' or ')}{values[path]}"
        for path, broken in rules.items()
    ]


def _rule(
    problem: Any, path: str, root: type[pydantic.BaseModel], other_names: Mapping[str, str]
) -> str:
    if problem["type"] == "extra_forbidden":
        name = path.rsplit(".", 1)[-1]
        meant = [key for key, *_ in describe_keys(root) if key.endswith(f".{name}")]
        if name in other_names:
            meant = [other_names[name]]
        if meant:
            return f"unknown key - did you mean {' or '.join(map(repr, meant[:3]))}?"
        return f"unknown key{did_you_mean(name, _keys_at(path, root))}"
    if problem["type"] == "missing":
        return "required, but missing"
    if problem["type"] == "model_type":
        return "must be a section of keys"
    return str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")


def _got(problem: Any) -> str:
    says_it_all = problem["type"] in {"extra_forbidden", "missing"} or isinstance(
        problem["input"], dict | pydantic.BaseModel
    )
    return "" if says_it_all else f", got {problem['input']!r}"


def _keys_at(path: str, root: type[pydantic.BaseModel]) -> list[str]:
    section: type[pydantic.BaseModel] | None = root
    parts = iter(path.split(".")[:-1])
    for part in parts:
        if section is None or part not in section.model_fields:
            return []
        annotation = section.model_fields[part].annotation
        section = section_in(annotation)
        if get_origin(annotation) is dict:
            next(parts, None)  # the name of one of several sections
    return [] if section is None else list(section.model_fields)
