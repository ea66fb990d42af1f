"""Reading a Python script or notebook of TRL or Unsloth: the arguments of the calls that set up a
training, as the keys of a file. Nothing of it is run.
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brimful.base.errors import RecipeError
from brimful.base.types import Json, JsonDict, Texts
from brimful.integrations.other_tools import training_arguments as hf

SUFFIXES = (".py", ".ipynb")
_COMMANDS = ("sft", "dpo", "kto", "grpo")
"""TRL's commands, each of which has a Config and a Trainer of its name."""
_CONFIGS = {f"{name.upper()}Config": name for name in _COMMANDS}
_TRAINERS = {f"{name.upper()}Trainer": name for name in _COMMANDS}
_CONFIGS["UnslothTrainingArguments"] = _TRAINERS["UnslothTrainer"] = "sft"
_ARGUMENTS = "TrainingArguments"
_GIVEN = {
    "learning_rate": hf.DEFAULTS["learning_rate"].value,
    "bf16": hf.DEFAULTS["bf16"].value,
    "gradient_checkpointing": False,
}
"""What TRL takes over from plain TrainingArguments, where its own configs have other defaults."""
_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "use_gradient_checkpointing": "gradient_checkpointing",
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_dora", "use_rslora")},
}
_UNSLOTH_LORA = {
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "lora_target_modules": [f"{each}_proj" for each in ("q", "k", "v", "o", "gate", "up", "down")],
    "gradient_checkpointing": True,
}
_MODEL = {"torch_dtype": "dtype", "dtype": "dtype", "attn_implementation": "attn_implementation"}
_UNSLOTH = {
    "": "model_name_or_path",
    "model_name": "model_name_or_path",
    "max_seq_length": "max_seq_length",
    "load_in_4bit": "load_in_4bit",
    "fast_inference": "use_vllm",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "dtype": "dtype",
}
_OF_TRAINERS = {
    "": "model_name_or_path",
    "model": "model_name_or_path",
    "args": "args",
    **{name: name for name in ("max_length", "max_seq_length", "packing", "beta", "loss_type")},
}
"""Before TRL 0.20 trainers took what their configs take now."""
_CALLS: Mapping[str, tuple[Texts, Json]] = {
    "LoraConfig": (_LORA, {"use_peft": True, "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}),
    "get_peft_model": (_LORA, _UNSLOTH_LORA),
    "AutoModelForCausalLM.from_pretrained": (
        {**_MODEL, "": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path"},
        {"dtype": "auto"},
    ),
    **dict.fromkeys(
        ("FastLanguageModel.from_pretrained", "FastModel.from_pretrained"),
        (
            _UNSLOTH,
            {
                "unsloth": True,
                "load_in_4bit": True,
                "max_seq_length": 2048,
                "use_bnb_nested_quant": True,
            },
        ),
    ),
    "BitsAndBytesConfig": (
        {
            "load_in_4bit": "load_in_4bit",
            "bnb_4bit_quant_type": "bnb_4bit_quant_type",
            "bnb_4bit_compute_dtype": "dtype",
            "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
        },
        {},
    ),
    **{trainer: (_OF_TRAINERS, {"trl_command": name}) for trainer, name in _TRAINERS.items()},
}
"""The keys that arguments of a call stand for ("": its first one without a name), and what the call
says by itself, by name of the call: its defaults in peft 0.21.2, transformers 5.23.0 and Unsloth
(models/loader.py and llama.py, read 2026-11-30), where those of TRL's commands are others.
"""
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_FURTHER = "further_arguments"
"""Key of what a script hands over as `**NAME` and only a run knows: no tool has it."""
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!capture\b|time\b|timeit\b|prun\b)")
"""How a cell begins that is not Python, or is only written to a file."""
_STANDBY = "UNSLOTH_VLLM_STANDBY"
_BUILDERS = ("json", "csv", "parquet")
"""What `load_dataset` calls files that are read as rows."""
_OF_SAME_ROWS = frozenset(
    {"map", "filter", "shuffle", "select_columns", "remove_columns", "rename_column", "with_format"}
)
"""Methods of `datasets.Dataset` whose rows still come from the hub id or files that were loaded."""


class _DataSet(NamedTuple):
    """What `load_dataset` is asked for: a hub id or files, those of each split where they are
    named, and the split, an empty text for all.
    """

    path: Any
    split: str = ""

    def keys(self) -> Iterator[tuple[str, Any]]:
        """Yield the keys of a file that name the same rows to train on; none where the program
        works them out.
        """
        name, bracket, part = (self.split or "train").partition("[")
        paths = self.path.get(name) if isinstance(self.path, dict) else self.path
        if paths and all(map(_is_known, paths if isinstance(paths, list) else [paths])):
            yield "dataset_name", paths
            name = "train" if isinstance(self.path, dict) else name
            yield "dataset_train_split", name + bracket + part


def values_of(path: Path, text: str) -> JsonDict:
    """Return the keys that a script sets.

    Raises:
        RecipeError: it is no Python, no notebook, or trains by none of TRL's trainers.
    """
    names: JsonDict = {}
    keys: JsonDict = {}
    config: JsonDict | None = None
    alone: JsonDict = {}
    for node in _up_to_the_last_trainer(_parsed(path, text)):
        if isinstance(node, ast.Assign):
            names |= dict(_named(node.targets[0], node.value, names))
            if _STANDBY in ast.dump(node.targets[0]):
                keys["vllm_enable_sleep_mode"] = True
        elif _name(node)[-1] in (*_CONFIGS, _ARGUMENTS):
            config = dict(_configured(node, names))  # of several trainings the last
            alone = _GIVEN | alone if _name(node)[-1] == _ARGUMENTS else alone
        elif (known := _known(node)) is not None:
            keys |= dict(_said(node, names, known[0]))
            alone |= known[1]
    if config is not None:
        keys.pop("args", None)
    found = alone | keys | (config or {})
    if "trl_command" not in found:
        raise RecipeError(
            f"{path} calls none of {', '.join(_TRAINERS)}: of scripts and notebooks only those of"
            " TRL and Unsloth are read. Write the arguments of another trainer as YAML."
        )
    return found


def _parsed(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(_code(text) if path.suffix == ".ipynb" else text)
    except (SyntaxError, ValueError, LookupError, TypeError, RecursionError, MemoryError) as error:
        told = str(error) or "too deeply nested"
        raise RecipeError(f"{path} cannot be read as Python: {told}.") from error


def _up_to_the_last_trainer(tree: ast.Module) -> list[ast.Assign | ast.Call]:
    """Return the assignments and calls as they are written; what follows is another matter."""
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Assign | ast.Call)]
    ends = [
        each.end_lineno or each.lineno
        for each in nodes
        if isinstance(each, ast.Call) and _name(each)[-1] in _TRAINERS
    ]
    nodes = [each for each in nodes if not ends or each.lineno <= max(ends)]
    return sorted(nodes, key=lambda each: (each.lineno, each.col_offset))


def _name(call: ast.Call) -> list[str]:
    return ast.unparse(call.func).split(".")


def _named(target: ast.expr, value: ast.expr, names: Json) -> Iterator[tuple[str, Any]]:
    """Yield what an assignment names."""
    if isinstance(target, ast.Name):
        yield target.id, _value(value, names)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _named(each, part, names)


def _code(text: str) -> str:
    """Return the code of a notebook without what IPython alone understands."""
    cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(line for cell in cells for line in [*_python("".join(cell)), ""])


def _python(cell: str) -> Iterator[str]:
    """Yield the lines of a cell; commands are left out with the lines in which they go on, and so
    is a cell in another language.
    """
    if _OTHER_LANGUAGE.match(cell):
        return
    goes_on = False
    for line in cell.splitlines():
        is_command = line.lstrip()[:1] in ("!", "%")
        if goes_on:
            yield ""
        else:
            indent = line[: len(line) - len(line.lstrip())]
            yield f"{indent}pass" if is_command else line
        goes_on = (goes_on or is_command) and line.rstrip().endswith("\\")


def _arguments(call: ast.Call, names: Json) -> JsonDict:
    """Return the arguments with names. Those that a dictionary holds are among them; where it is
    not known, it is one of its own.
    """
    found: JsonDict = {}
    for each in call.keywords:
        value = _value(each.value, names)
        if each.arg is None and not isinstance(value, dict):
            value = {_FURTHER: value}
        found |= {each.arg: value} if each.arg else value
    return found


def _configured(call: ast.Call, names: Json) -> Iterator[tuple[str, Any]]:
    said, name = _arguments(call, names), _name(call)[-1]
    options = said.pop("model_init_kwargs", {})
    if name in _CONFIGS:
        yield "trl_command", _CONFIGS[name]
    yield from said.items()
    if isinstance(options, dict):
        yield from ((_MODEL[key], each) for key, each in options.items() if key in _MODEL)


def _known(call: ast.Call) -> tuple[Texts, Json] | None:
    """Return what is known of a call, None for nothing: peft's get_peft_model says no more than its
    LoraConfig.
    """
    written = _name(call)
    if written in (["get_peft_model"], ["peft", "get_peft_model"]):
        return None
    return _CALLS.get(written[-1], _CALLS.get(".".join(written[-2:])))


def _said(call: ast.Call, names: Json, renamed: Texts) -> Iterator[tuple[str, Any]]:
    said = _arguments(call, names)
    if said.pop("full_finetuning", False) is True:
        said["load_in_4bit"] = False
    if call.args:
        said |= {"": _value(call.args[0], names)}
    for name, value in said.items():
        if name == _FURTHER:
            yield name, value
        if isinstance(value, _DataSet) and name == "train_dataset":
            yield from value.keys()
        is_model = renamed.get(name) == "model_name_or_path"
        if name in renamed and value is not None and (not is_model or _is_known(value)):
            is_kind = renamed[name] == "gradient_checkpointing" and isinstance(value, str)
            yield renamed[name], True if is_kind else value


def _is_known(value: Any) -> bool:
    return isinstance(value, str) and not value.startswith("${")


def _value(node: ast.expr, names: Json) -> Any:
    """Return a plain value; of what is none, its text as a template: `${len(rows)}`."""
    found: Any = f"${{{ast.unparse(node)}}}"
    match node:
        case ast.Constant():
            found = node.value
        case ast.Name():
            found = names.get(node.id, found)
        case ast.Attribute(value=ast.Name(id="torch")):
            found = node.attr
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            found = _arguments(node, names)
        case ast.Call() | ast.Subscript():
            found = _data_set(node, names) or found
        case ast.List() | ast.Tuple():
            found = [_value(each, names) for each in node.elts]
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            found = {
                key.value: _value(each, names)
                for key, each in pairs
                if isinstance(key, ast.Constant)
            }
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left, names), _value(node.right, names)
            if isinstance(left, int | float) and isinstance(right, int | float):
                found = _OPERATORS[type(node.op)](left, right)
    return found


def _data_set(node: ast.Call | ast.Subscript, names: Json) -> _DataSet | None:
    """Return the rows that an expression loads; None where it is another."""
    match node:
        case ast.Call(func=ast.Name(id="load_dataset"), args=words):
            said = _arguments(node, names)
            path = _value(words[0], names) if words else said.get("path")
            path = said.get("data_files") if path in _BUILDERS else path
            split = said.get("split") or ""
            return _DataSet(path, split) if path and _is_known(split) else None
        case ast.Call(func=ast.Attribute(value=rows, attr=done)) if done in _OF_SAME_ROWS:
            split = ""
        case ast.Subscript(value=rows, slice=ast.Constant(value=str(split))):
            pass
        case _:
            return None
    found = _value(rows, names)
    return found._replace(split=split or found.split) if isinstance(found, _DataSet) else None
