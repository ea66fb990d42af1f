"""Serve a finished run's model with the protocol of OpenAI's API: through vLLM where it is
installed, through transformers' own server otherwise.
"""

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
from brimful.base.warning_codes import as_note
from brimful.generation.export import export
from brimful.generation.load import recipe_of, trained_folder
from brimful.model.description import is_own_architecture
from brimful.model.published import is_adapter_folder

Server = Literal["auto", "vllm", "transformers"]
LOCAL = ("127.0.0.1", "localhost", "::1")
NEEDED: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "transformers": ("fastapi", "uvicorn", "openai"),
}
"""By server: packages that are no dependencies of brimful."""
EXTRAS = {"vllm": "vllm", "transformers": "serve"}


@dataclass(frozen=True)
class Endpoint:
    """What is served, and where.

    Attributes:
        folder: The whole model in Hugging Face layout.
        host, port: Where the server listens.
        device: As transformers names it; vLLM takes the GPU that there is.
    """

    folder: Path
    host: str
    port: int
    device: str = "auto"

    @property
    def address(self) -> str:
        """The address that a client of OpenAI's API takes as `base_url`."""
        return f"http://{self.host}:{self.port}/v1"


def choose_server(choice: Server) -> Literal["vllm", "transformers"]:
    """Return the server to use.

    Raises:
        RequestError: its packages are not installed; says how to install them.
    """
    server: Literal["vllm", "transformers"] = "transformers"
    if choice == "vllm" or (choice == "auto" and not _missing("vllm")):
        server = "vllm"
    if missing := _missing(server):
        raise RequestError(
            f"serving with {server} needs {', '.join(missing)}, not installed here."
            f" {how_to_install(EXTRAS[server])}"
        )
    return server


def _missing(server: str) -> list[str]:
    return [name for name in NEEDED[server] if find_spec(name) is None]


def model_to_serve(run_folder: Path, say: Say) -> Path:
    """Return a folder with the whole model of a run; adapters are merged into their base in bf16
    first, which is checked, and kept in the run's folder for the next time.

    Raises:
        RunFolderError: the run is not finished, or its base changed.
        RequestError: it writes no text, or is of an architecture that no server knows.
    """
    recipe = recipe_of(run_folder)
    if not recipe.kind.writes_text:
        raise RequestError(
            f"{run_folder.name} writes no text, so there is nothing to ask it. Classifiers answer"
            f" `brimful predict {run_folder.name} FILE`."
        )
    if is_own_architecture(recipe.model):
        raise RequestError(
            f"{run_folder.name} has an architecture of brimful's own, which no server knows."
            f" `brimful generate {run_folder.name}` writes with it."
        )
    exported = export(run_folder, merge=is_adapter_folder(trained_folder(run_folder)))
    say("\n".join(exported.lines()))
    return exported.folder


def serve(run_folder: Path, choice: Server, host: str, port: int, device: str, say: Say) -> None:
    """Serve until a signal ends it.

    Raises:
        BrimfulError: as `choose_server` and `model_to_serve`, or the server ended with an error.
    """
    server = choose_server(choice)
    endpoint = Endpoint(model_to_serve(run_folder, say), host, port, device)
    say(f"serving {run_folder.name} with {server} at {endpoint.address}; ctrl-C ends it")
    say(
        f"clients of OpenAI's API take base_url={endpoint.address} and model={name_of(endpoint)};"
        " any api_key will do"
    )
    if host not in LOCAL:
        say(as_note(f"whoever reaches {host} can use it: there is no password.", "B601"))
    SERVERS[server](endpoint)


def name_of(endpoint: Endpoint) -> str:
    """Return the name by which clients ask for the model: its folder, which both servers take."""
    return str(endpoint.folder)


def vllm_command(endpoint: Endpoint) -> Sequence[str]:
    """Return the command that starts vLLM's server, by its documentation (`vllm serve`, 0.30)."""
    return [
        str(Path(sys.executable).with_name("vllm")),
        *("serve", str(endpoint.folder)),
        *("--served-model-name", name_of(endpoint)),
        *("--host", endpoint.host),
        *("--port", str(endpoint.port)),
    ]


def _serve_with_vllm(endpoint: Endpoint) -> None:
    ended = subprocess.run(vllm_command(endpoint), check=False).returncode  # noqa: S603 - our own
    if ended > 0:
        raise RequestError(f"vLLM's server ended with exit code {ended}; its lines say why.")


def _serve_with_transformers(endpoint: Endpoint) -> None:
    from transformers.cli.serve import Serve  # noqa: PLC0415 - an extra

    Serve(str(endpoint.folder), host=endpoint.host, port=endpoint.port, device=endpoint.device)


SERVERS: dict[str, Callable[[Endpoint], None]] = {
    "vllm": _serve_with_vllm,
    "transformers": _serve_with_transformers,
}
