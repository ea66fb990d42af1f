"""Serve a finished run's model with the protocol of OpenAI's API: by brimful's engine behind a
guarded front, or by vLLM's own server.
"""

import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from brimful.base.console import Say
from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.local_server import Guard, is_local, listen, refuse_if_taken
from brimful.base.warning_codes import as_note
from brimful.generation.author import load_to_write
from brimful.generation.copied_weights import products_for
from brimful.generation.engine import Engine
from brimful.generation.export import export
from brimful.generation.load import LoadedRun, recipe_of, trained_folder
from brimful.hardware.probe import probe, torch_device
from brimful.model.description import is_own_architecture
from brimful.model.published import is_adapter_folder

Server = Literal["brimful", "vllm"]
NEEDED: dict[Server, tuple[str, ...]] = {"vllm": ("vllm",), "brimful": ("starlette", "uvicorn")}
"""By server: packages that are no dependencies of brimful."""
EXTRAS: dict[Server, str] = {"vllm": "vllm", "brimful": "serve"}
MOST_TOKENS = 8192
"""New tokens of one text, where the model's context allows them."""


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served, and to whom.

    Attributes:
        host, port: Where the server listens.
        names: Further names that it answers to.
        key: What clients have to know; None: nothing.
        most_tokens: New tokens of one text at most.
        most_seconds: The most seconds of one answer.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    key: str | None = None
    most_tokens: int = MOST_TOKENS
    most_seconds: float = 600.0

    @property
    def address(self) -> str:
        """The address that a client of OpenAI's API takes as `base_url`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"

    def notes(self) -> list[str]:
        """Return what a user should know of who can reach it."""
        if is_local(self.host) or self.key is not None:
            return []
        reached = f"whoever reaches {self.host} can use it: give it a key with --api-key."
        return [as_note(reached, "B601")]


def refuse_without(server: Server) -> None:
    """Raise RequestError if the server's packages are not installed; it says how to install
    them.
    """
    if missing := [name for name in NEEDED[server] if find_spec(name) is None]:
        raise RequestError(
            f"serving with {server} needs {', '.join(missing)}, not installed here."
            f" {how_to_install(EXTRAS[server])}"
        )


def refuse_what_writes_nothing(run_folder: Path) -> None:
    """Raise RequestError if the run's model writes no text."""
    if not recipe_of(run_folder).kind.writes_text:
        raise RequestError(
            f"{run_folder.name} writes no text, so there is nothing to ask it. Classifiers answer"
            f" `brimful predict {run_folder.name} FILE`."
        )


def serve(run_folder: Path, server: Server, endpoint: Endpoint, device: str, say: Say) -> None:
    """Serve until a signal ends it.

    Args:
        run_folder: A finished run.
        server: Which one.
        endpoint: Where, and to whom.
        device: Where brimful's engine writes; vLLM takes the GPU that there is.
        say: Prints.

    Raises:
        BrimfulError: packages are missing, the address is taken, the run cannot be served, or the
            server ended with an error.
    """
    refuse_without(server)
    refuse_what_writes_nothing(run_folder)
    refuse_if_taken(endpoint.host, endpoint.port)
    if server == "vllm":
        folder = model_for_vllm(run_folder, say)
        _announce(run_folder, server, endpoint, say)
        ended = subprocess.run(vllm_command(folder, endpoint, run_folder.name), check=False)  # noqa: S603 - our own
        if ended.returncode > 0:
            raise RequestError(
                f"vLLM's server ended with exit code {ended.returncode}; its lines say why."
            )
        return
    loaded = load_to_write(run_folder, torch_device(probe(device)))
    _serve(loaded, endpoint, lambda: _announce(run_folder, server, endpoint, say))


def _announce(run_folder: Path, server: Server, endpoint: Endpoint, say: Say) -> None:
    key = "any api_key will do" if endpoint.key is None else "api_key is that of --api-key"
    say(f"serving {run_folder.name} with {server} at {endpoint.address}; ctrl-C ends it")
    say(
        f"clients of OpenAI's API take base_url={endpoint.address} and model={run_folder.name};"
        f" {key}"
    )
    for note in endpoint.notes():
        say(note)


def model_for_vllm(run_folder: Path, say: Say) -> Path:
    """Return a folder with the whole model of a run; adapters are merged into their base in bf16
    first, which is checked, and kept in the run's folder for the next time.

    Raises:
        RunFolderError: the run is not finished, or its base changed.
        RequestError: it is of an architecture that vLLM does not know.
    """
    if is_own_architecture(recipe_of(run_folder).model):
        raise RequestError(
            f"{run_folder.name} has an architecture of brimful's own, which vLLM does not know."
            " Leave --server out."
        )
    exported = export(run_folder, merge=is_adapter_folder(trained_folder(run_folder)))
    say("\n".join(exported.lines()))
    return exported.folder


def vllm_command(folder: Path, endpoint: Endpoint, name: str) -> Sequence[str]:
    """Return the command that starts vLLM's server, by its documentation (`vllm serve`, 0.30)."""
    return [
        str(Path(sys.executable).with_name("vllm")),
        *("serve", str(folder)),
        *("--served-model-name", name),
        *("--host", endpoint.host),
        *("--port", str(endpoint.port)),
        *(() if endpoint.key is None else ("--api-key", endpoint.key)),
    ]


def _serve(loaded: LoadedRun, endpoint: Endpoint, announce: Callable[[], None]) -> None:
    """Listen, then announce it and answer."""
    from brimful.generation.server.app import Front, RequestLimits  # noqa: PLC0415 - an extra
    from brimful.generation.server.writer import SharedWriter  # noqa: PLC0415

    limits = RequestLimits(endpoint.most_tokens, endpoint.most_seconds)
    products = products_for(loaded.model, loaded.recipe.plan.precision)
    engine = Engine(loaded.model, loaded.tokenizer, products=products)
    writer = SharedWriter(engine, loaded.stop_ids, limits.waiting)
    names = (endpoint.host, socket.gethostname(), *endpoint.names)
    app = Guard(Front(loaded, writer, limits).app(), names, endpoint.key)
    try:
        listen(app, endpoint.host, endpoint.port, announce)
    finally:
        writer.close()
