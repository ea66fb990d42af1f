"""Reading a file of another tool: YAML, JSON, a script or a command line into plain keys, with
changes on top.
"""

from collections.abc import Sequence
from pathlib import Path

from brimful.base.discover import what_stands_at
from brimful.base.dotted import override, parse_mapping
from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict
from brimful.integrations.other_tools import script
from brimful.integrations.other_tools.accelerated import keys_of, with_type
from brimful.integrations.other_tools.candidates import PICKLES, SCRIPT, is_candidate, is_command
from brimful.integrations.other_tools.command import command_keys
from brimful.integrations.other_tools.job import ReadJob, read_job
from brimful.integrations.other_tools.recognise import recognised, tool_named

TEMPLATE = "It is a template"


def read_values(path: Path, changes: Sequence[str] = ()) -> JsonDict:
    """Return the settings of a configuration file, or of the command line that a file holds, with
    `key=value` changes applied.

    Raises:
        RecipeError: it cannot be read, is a pickle, no YAML or JSON, or has no keys; as
            `command_keys`.
    """
    keys = _of_command(str(path), "the command", Path()) if is_command(str(path)) else _of(path)
    for change in changes:
        try:
            override(change, keys, {})
        except ValueError as error:
            raise RecipeError(str(error)) from error
    return keys


def _of_command(text: str, origin: str, folder: Path) -> JsonDict:
    named, keys = command_keys(text, origin)
    launch = _found(str(keys.get("config_file", "")), folder)
    if launch is not None:
        del keys["config_file"]
        keys = {**keys_of(_of(launch)), **keys}
    if named is not None:
        path = _found(named, folder)
        if path is None:
            raise RecipeError(f"{origin} reads {named}, which was not found from here.")
        keys = {**_of(path), **keys}
    return with_type(keys)


def _found(named: str, folder: Path) -> Path | None:
    """Return a file that is named in one of a folder: from here, or from there; None for none."""
    return next((each for each in (Path(named), folder / named) if each.is_file()), None)


def _of(path: Path) -> JsonDict:
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
    if path.suffix == SCRIPT:
        return _of_command(text, str(path), path.parent)
    if path.suffix in script.SUFFIXES:
        values = script.values_of(path, text)
    else:
        values = parse_mapping(text, str(path), hint=_hint(text))
    return {str(key): value for key, value in values.items()}


def _hint(text: str) -> str:
    if "{{" in text or "{%" in text:
        return f". {TEMPLATE}: render it first, and plan what comes out."
    return "."


def tool_of(name: str, changes: Sequence[str] = (), tool: str | None = None) -> str | None:
    """Return the name of the tool whose file is given in place of a recipe; None for a recipe.

    Args:
        name: What the user gave.
        changes: Changes as `key=value`.
        tool: Named by the user.

    Raises:
        RecipeError: as `recognised` and `read_values`; the tool is not known, or there is no file.
    """
    if tool is not None:
        tool_named(tool)
        if not is_command(name) and not Path(name).is_file():
            raise RecipeError(f"--tool {tool} reads a file, and {name} is none.")
        return tool
    if not is_candidate(name):
        return None
    try:
        values = read_values(Path(name), changes)
    except RecipeError as error:
        named = Path(name).suffix in (*PICKLES, SCRIPT, *script.SUFFIXES)
        if named or is_command(name) or TEMPLATE in str(error):
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
        changes: Changes as `key=value` in the tool's own keys; null takes a key away.
        native_bf16: Whether the device has bf16.

    Raises:
        RecipeError: as `read_values`.
    """
    values = _with_deepspeed(read_values(path, changes), path.parent)
    return read_job(tool_named(tool), values, native_bf16=native_bf16)


def _with_deepspeed(values: JsonDict, folder: Path) -> JsonDict:
    """Return the keys with DeepSpeed's settings in place of the path of their file, if it is there:
    from here, or from the folder of the tool's file.
    """
    named = values.get("deepspeed")
    if not isinstance(named, str):
        return values
    path = _found(named, folder)
    if path is None or path.suffix != ".json":
        return values
    return {**values, "deepspeed": read_values(path)}
