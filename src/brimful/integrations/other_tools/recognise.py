"""Which tool wrote a file: by keys that no other tool has."""

import importlib
from functools import cache

from brimful.base.discover import names_in
from brimful.base.errors import RecipeError
from brimful.base.types import Json
from brimful.integrations.other_tools.job import Tool
from brimful.recipe import Recipe

PACKAGE = "brimful.integrations.other_tools.tools"
OWN_KEYS = ("method", "batch", "training", "data", "plan", "run")
"""Keys of brimful's recipes that no tool has at the top of its files."""


@cache
def tool_names() -> tuple[str, ...]:
    """Names of the tools that brimful can read, as --tool takes them."""
    return tuple(names_in(PACKAGE, ".py"))


def tool_named(name: str) -> Tool:
    """Return a tool.

    Raises:
        RecipeError: brimful does not know it.
    """
    if name not in tool_names():
        raise RecipeError(f"--tool {name}: brimful reads files of {', '.join(tool_names())}.")
    tool: Tool = importlib.import_module(f"{PACKAGE}.{name}").TOOL
    return tool


def marks(values: Json) -> dict[str, list[str]]:
    """Return by tool the keys of a file that only this tool has; tools without any are left out."""
    found = {}
    for name in tool_names():
        tool = tool_named(name)
        given = tool.flat(values)
        if keys := [key for key in tool.marks if key in given]:
            found[name] = keys
    return found


def recognised(values: Json, origin: str) -> str | None:
    """Return the name of the tool that wrote a file; None for a recipe of brimful's own, or what no
    tool's keys are in.

    Args:
        values: What stands in the file.
        origin: Named in errors.

    Raises:
        RecipeError: it holds keys of two tools, or keys that several tools have and no other.
    """
    if any(key in values for key in OWN_KEYS):
        return None
    found = marks(values)
    if len(found) == 1:
        return next(iter(found))
    if len(found) > 1:
        mixed = "; ".join(f"{name} has {', '.join(keys[:4])}" for name, keys in found.items())
        raise RecipeError(
            f"{origin} holds keys of {len(found)} tools: {mixed}. Say whose it is, as --tool"
            f" {next(iter(found))}; the other's keys are then not understood."
        )
    return _knowing_most(values, origin)


def _knowing_most(values: Json, origin: str) -> str | None:
    """Return the tool that knows more of the keys than any other, and most of them."""
    known = {}
    for name in tool_names():
        tool = tool_named(name)
        own = tool.keys - frozenset(Recipe.model_fields)
        known[name] = sum(key in own for key in tool.flat(values))
    best = max(known.values())
    names = [name for name, count in known.items() if count == best]
    if best < 2 or 2 * best <= len(values):
        return None
    if len(names) > 1:
        raise RecipeError(
            f"{origin} may be of {' or '.join(names)}: its keys are known to"
            f" {'both' if len(names) == 2 else 'all of them'}. Say which, as --tool {names[0]}."
        )
    return names[0]
