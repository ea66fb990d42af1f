"""Reading a Python script or notebook of TRL or Unsloth: the arguments of the calls that set up a
training, as the keys of a file. Nothing of it is run.
"""

import ast
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brimful.base.errors import RecipeError
from brimful.base.types import Json, JsonDict, Texts

SUFFIXES = (".py", ".ipynb")
CONFIGS = ("GRPOConfig", "DPOConfig", "KTOConfig", "SFTConfig")
_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "use_gradient_checkpointing": "gradient_checkpointing",
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_dora", "use_rslora")},
}
_MODEL = {"torch_dtype": "dtype", "dtype": "dtype", "attn_implementation": "attn_implementation"}
_UNSLOTH = {
    "model_name": "model_name_or_path",
    "load_in_4bit": "load_in_4bit",
    "fast_inference": "use_vllm",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "dtype": "dtype",
}
_CALLS: Mapping[str, tuple[Texts, Json]] = {
    "LoraConfig": (_LORA, {"use_peft": True}),
    "get_peft_model": (_LORA, {"use_peft": True}),
    "AutoModelForCausalLM.from_pretrained": (
        {**_MODEL, "": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path"},
        {},
    ),
    **dict.fromkeys(
        ("FastLanguageModel.from_pretrained", "FastModel.from_pretrained"),
        (_UNSLOTH, {"unsloth": True, "use_bnb_nested_quant": True}),
    ),
    "BitsAndBytesConfig": (
        {
            "load_in_4bit": "load_in_4bit",
            "bnb_4bit_quant_type": "bnb_4bit_quant_type",
            "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
        },
        {},
    ),
    **{
        f"{name.removesuffix('Config')}Trainer": ({"model": "model_name_or_path"}, {})
        for name in CONFIGS
    },
}
"""The keys that arguments of a call stand for ("": its first one without a name), and what the call
says by itself, by name of the call.
"""
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
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
        RecipeError: it is no Python, or no notebook.
    """
    try:
        tree = ast.parse(_code(text) if path.suffix == ".ipynb" else text)
    except (SyntaxError, ValueError, LookupError, TypeError, RecursionError, MemoryError) as error:
        told = str(error) or "too deeply nested"
        raise RecipeError(f"{path} cannot be read as Python: {told}.") from error
    names: JsonDict = {}
    keys: JsonDict = {}
    config: JsonDict = {}
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Assign | ast.Call)]
    trainers = [
        each.end_lineno or each.lineno
        for each in nodes
        if isinstance(each, ast.Call) and _is_trainer(each)
    ]
    for node in sorted(nodes, key=lambda each: (each.lineno, each.col_offset)):
        if trainers and node.lineno > max(trainers):
            break
        if isinstance(node, ast.Assign):
            names |= dict(_named(node.targets[0], node.value, names))
            if _STANDBY in ast.dump(node.targets[0]):
                keys["vllm_enable_sleep_mode"] = True
        elif _name(node)[-1] in CONFIGS:
            config = dict(_configured(node, names))  # of several trainings the last
        else:
            keys |= dict(_said(node, names))
    return keys | config


def _name(call: ast.Call) -> list[str]:
    return ast.unparse(call.func).split(".")


def _is_trainer(call: ast.Call) -> bool:
    return f"{_name(call)[-1].removesuffix('Trainer')}Config" in CONFIGS


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
    lines = [line for cell in cells for line in [*"".join(cell).splitlines(), ""]]
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + "pass" if line.lstrip()[:1] in ("!", "%") else line
        for line in lines
    )


def _arguments(call: ast.Call, names: Json) -> JsonDict:
    return {each.arg: _value(each.value, names) for each in call.keywords if each.arg}


def _configured(call: ast.Call, names: Json) -> Iterator[tuple[str, Any]]:
    said = _arguments(call, names)
    options = said.pop("model_init_kwargs", {})
    yield from said.items()
    if isinstance(options, dict):
        yield from ((_MODEL[key], each) for key, each in options.items() if key in _MODEL)


def _said(call: ast.Call, names: Json) -> Iterator[tuple[str, Any]]:
    said, written = _arguments(call, names), _name(call)
    known = _CALLS.get(written[-1], _CALLS.get(".".join(written[-2:])))
    if known is None or (written[-1] == "get_peft_model" and "r" not in said):
        return
    renamed, alone = known
    if call.args:
        said |= {"": _value(call.args[0], names)}
    yield from alone.items()
    for name, value in said.items():
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
