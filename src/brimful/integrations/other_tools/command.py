"""Command lines that start a tool, such as `llamafactory-cli train --stage sft`: in quotes, or in a
shell script.
"""

import re
import shlex
from string import Template
from typing import Any

from brimful.base.dotted import parse_yaml
from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict
from brimful.integrations.other_tools.accelerated import keys_of

_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;&]*)\s*$", re.MULTILINE)
_REDIRECTED = re.compile(r"\d?[<>|&;]")
FILES = (".yaml", ".yml", ".json")
_VERBS = ("train", "sft", "dpo", "kto", "grpo")
_OF_TRL = re.compile(r"(\btrl |trl/scripts/)(sft|dpo|kto|grpo)(\.py)?$")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_OF_SEVERAL = (
    "each device is planned as if it held all; what it keeps for the others is not counted"
)
LAUNCHED = dict.fromkeys(("num_processes", "nproc_per_node", "num_gpus", "nnodes"), _OF_SEVERAL)
"""Options of launchers that say how many devices share a job, and what is planned of them."""


def command_keys(text: str, origin: str) -> tuple[str | None, JsonDict]:
    """Return the file that the one command of a text reads, None without, and the keys that it
    gives: `--key value`, `--key=value`, `key=value` or `--key` for true. Variables of the shell are
    filled in where the text sets them.

    Args:
        text: A command or a shell script.
        origin: Named in errors.

    Raises:
        RecipeError: it holds no command that trains, or several.
    """
    text = re.sub(r"\\\r?\n", " ", text)
    variables: dict[str, str] = {}
    for name, value in _ASSIGNED.findall(text):
        variables[name] = Template(value.strip("\"'")).safe_substitute(variables)
    found = [
        launch
        for line in text.splitlines()
        if (launch := _launch(Template(line).safe_substitute(variables))) is not None
    ]
    if len(found) != 1:
        raise RecipeError(
            f"{origin} holds {len(found)} commands that train; one is read, such as"
            " `llamafactory-cli train --stage sft --model_name_or_path MODEL`."
        )
    return found[0]


def _launch(line: str) -> tuple[str | None, JsonDict] | None:
    """Return the file and keys of a line; None where it starts no training."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quote that ends in another line
        return None
    end = next((at for at, word in enumerate(words) if _REDIRECTED.match(word)), len(words))
    script = next((at for at in range(end) if _is_script(words, at)), end)
    of_launcher = _options(words[:script])
    names = (*LAUNCHED, "config_file")
    kept = {key: of_launcher[key] for key in names if key in of_launcher} | keys_of(of_launcher)
    first = words[script + 1] if script + 1 < end else ""
    keys = _options(words[script + 1 : end])
    if _OF_TRL.search(" ".join(words[max(script - 1, 0) : script + 1])):
        keys["trl_command"] = words[script].rpartition("/")[2].removesuffix(".py")
    named = None if first.startswith("--") else first
    if not (named or "").endswith(FILES):
        # TRL's scripts and torchtune's recipes are given their file so.
        named = str(keys.pop("config")) if str(keys.get("config")).endswith(FILES) else None
    return (named, kept | keys) if named or keys else None


def _is_script(words: list[str], at: int) -> bool:
    before = words[at - 1] if at else ""
    if before == "-m":
        return words[at] not in _LAUNCHERS
    return words[at].endswith(".py") or (bool(before) and words[at] in _VERBS)


def _options(words: list[str]) -> JsonDict:
    """Return the options among words by key; several words after one are a list."""
    given: dict[str, list[str]] = {}
    key = None
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            key = name.removeprefix("--").replace("-", "_")
            given[key] = [value] if equals else []
        elif key is not None:
            given[key].append(word)
        elif equals and name.isidentifier():
            given[name] = [value]
    return {key: _value(values) for key, values in given.items()}


def _value(words: list[str]) -> Any:
    if len(words) != 1:
        return words or True
    try:
        return parse_yaml(words[0])
    except ValueError:
        return words[0]
