"""`brimful studio`: the page is served on one address until Ctrl-C."""

import contextlib
import importlib.util
import os
import secrets
import threading
from pathlib import Path

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.local_server import Guard, is_local, listen, refuse_if_taken
from brimful.base.warning_codes import as_note

NEEDED = ("starlette", "uvicorn")
"""Packages that are no dependencies of brimful."""


def serve(host: str, port: int, runs_folder: Path | None) -> None:
    """Serve the page until Ctrl-C. What was started from it goes on.

    Args:
        host: The address to listen on; 127.0.0.1 for this machine alone.
        port: The port to listen on.
        runs_folder: Holds the runs to show and try; None leaves out all but planning.

    Raises:
        RequestError: the port is in use, the address is not one of this machine, or Starlette is
            not installed.
    """
    refuse_if_taken(host, port)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise RequestError(
            f"the page needs {' and '.join(missing)}, not installed here."
            f" {how_to_install('studio')}"
        )
    # They use Starlette, which is an extra.
    from brimful.faces.studio.app import Studio  # noqa: PLC0415
    from brimful.faces.studio.planners import Planners  # noqa: PLC0415

    planners, key = Planners(), secrets.token_urlsafe(24)
    threading.Thread(target=planners.warm_up, daemon=True).start()
    studio = Studio.of(planners, runs_folder, key, is_local=is_local(host))

    def announce() -> None:
        name = f"[{host}]" if ":" in host else host
        secret = f"#key={key}" if is_local(host) and runs_folder is not None else ""
        print(f"studio: http://{name}:{port}/{secret} (Ctrl-C ends it)", flush=True)
        if warning := warning_of(host, runs_folder):
            print(as_note(warning, "B601"), flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        guarded = Guard(studio.app(), () if is_local(host) else None)
        listen(guarded, host, port, announce, studio.close)
    print("studio: ended", flush=True)
    planners.close()
    # Threads of the libraries are left as they are: ending them in the middle of a model aborts the
    # process.
    os._exit(0)


def warning_of(host: str, runs_folder: Path | None) -> str:
    """Return a warning if other machines see the page."""
    if is_local(host):
        return ""
    runs = ""
    if runs_folder is not None:
        runs = f", and the runs in {runs_folder}; --only-fit leaves them out"
    return f"on {host} every machine that reaches this one sees the page{runs}."
