"""Reading a file of another tool: YAML, JSON or a script into plain keys, with changes on top."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brimful.base.discover import what_stands_at
from brimful.base.dotted import override, parse_mapping
from brimful.base.errors import RecipeError
from brimful.other_trainers import script
from brimful.other_trainers.candidates import PICKLES, is_candidate
from brimful.other_trainers.job import ReadJob, read_job
from brimful.other_trainers.recognise import recognised, tool_named

TEMPLATE = "It is a template"


def read_values(path: Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys of a file, with `key=value` changes.

    Raises:
        RecipeError: it cannot be read, is a pickle, no YAML or JSON, or has no keys.
    """
    if path.suffix in PICKLES:
        raise RecipeError(
            f"{path} is a pickle, which runs code when it is opened, so brimful does not read it."
            " Write the arguments as JSON: `args.to_json_string()` of the TrainingArguments, or the"
            " YAML that the job was started from."
        )
    if what := what_stands_at(path):
        raise RecipeError(f"{path} cannot be read: it is {what}.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from error
    if path.suffix in script.SUFFIXES:
        values = script.values_of(path, text)
    else:
        values = parse_mapping(text, str(path), hint=_hint(text))
    keys = {str(key): value for key, value in values.items()}
    for change in changes:
        try:
            override(change, keys, {})
        except ValueError as error:
            raise RecipeError(str(error)) from error
    return keys


def _hint(text: str) -> str:
    if "{{" in text or "{%" in text:
        return f". {TEMPLATE}: render it first, and plan what comes out."
    return "."


def tool_of(name: str, changes: Sequence[str] = (), tool: str | None = None) -> str | None:
    """Return the name of the tool whose file is given in place of a recipe; None for a recipe.

    Args:
        name: What the user gave.
        changes: As `key=value`.
        tool: Named by the user.

    Raises:
        RecipeError: as `recognised` and `read_values`; the tool is not known, or there is no file.
    """
    if tool is not None:
        tool_named(tool)
        if not Path(name).is_file():
            raise RecipeError(f"--tool {tool} reads a file, and {name} is none.")
        return tool
    if not is_candidate(name):
        return None
    try:
        values = read_values(Path(name), changes)
    except RecipeError as error:
        if Path(name).suffix in PICKLES or TEMPLATE in str(error):
            raise
        return None  # the reader of recipes says what is wrong with it
    return recognised(values, name)


def read_file(
    path: Path, tool: str, changes: Sequence[str] = (), *, native_bf16: bool = True
) -> ReadJob:
    """Return a tool's file, read by its tables.

    Args:
        path: The file.
        tool: The tool's name.
        changes: As `key=value` in the tool's own keys; null takes a key away.
        native_bf16: Whether the device has bf16.

    Raises:
        RecipeError: as `read_values`.
    """
    values = _with_deepspeed(read_values(path, changes), path.parent)
    return read_job(tool_named(tool), values, native_bf16=native_bf16)


def _with_deepspeed(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the keys with DeepSpeed's settings in place of the path of their file, if it is there:
    from here, or from the folder of the tool's file.
    """
    named = values.get("deepspeed")
    if not isinstance(named, str):
        return values
    for path in (Path(named), folder / named):
        if path.suffix == ".json" and path.is_file():
            return {**values, "deepspeed": read_values(path)}
    return values
