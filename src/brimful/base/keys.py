"""What can be written in a section: every key with its type, default and meaning."""

import inspect
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic


def describe_keys(
    section: type[pydantic.BaseModel], prefix: str = ""
) -> Iterator[tuple[str, str, str, str]]:
    """Yield every key of a model and its sections in order: (dotted key, type, default or
    "required", description). In a mapping of sections by name, the name is NAME.
    """
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        if inner is not field.annotation:
            default = "required" if field.is_required() else json.dumps(field.default)
            yield (
                prefix + name,
                _kind(field.annotation),
                default,
                field.description or _first_paragraph(inner),
            )
        if inner is not None:
            by_name = "NAME." if get_origin(field.annotation) is dict else ""
            yield from describe_keys(inner, f"{prefix}{name}.{by_name}")


def _first_paragraph(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def section_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The section that a field of this type is or may be; None for plain values."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, pydantic.BaseModel) else None
    return next(
        (inner for part in get_args(annotation) if (inner := section_in(part)) is not None), None
    )


def _kind(annotation: Any) -> str:
    """A type as a user writes values of it: `int or null`, `llama or gpt2`, `text or list of text`,
    `mapping of text to float`.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin in {dict, list}:
        return f"{'mapping' if origin is dict else 'list'} of {' to '.join(map(_kind, arguments))}"
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return "section"
    if arguments:
        return " or ".join(map(_kind, arguments))
    return {str: "text", type(None): "null", bool: "true or false"}.get(
        annotation, str(annotation.__name__)
    )
