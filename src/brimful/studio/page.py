"""`brimful studio`: the page is served on one address until Ctrl-C."""

import importlib.util
import os
import threading
import time
from pathlib import Path

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.local_server import is_local, refuse_if_taken
from brimful.base.warning_codes import as_note
from brimful.studio.gradio_loading import load_gradio

MISSING = "the page needs Gradio, which is not installed."


def serve(host: str, port: int, runs_folder: Path | None) -> None:
    """Serve the page until Ctrl-C.

    Args:
        host: The address to listen on; 127.0.0.1 for this machine alone.
        port: The port to listen on.
        runs_folder: Holds the runs to show and try; None leaves out these tabs.

    Raises:
        RequestError: the port is in use, the address is not one of this machine, or Gradio is not
            installed.
    """
    refuse_if_taken(host, port)
    if importlib.util.find_spec("gradio") is None:
        raise RequestError(f"{MISSING} {how_to_install('studio')}")
    load_gradio()
    # It uses Gradio, which is loaded first.
    from brimful.studio.layout import launch  # noqa: PLC0415
    from brimful.studio.planners import Planners  # noqa: PLC0415

    planners = Planners()
    threading.Thread(target=planners.warm_up, daemon=True).start()
    address = launch(host, port, runs_folder, planners)
    print(f"studio: {address} (Ctrl-C ends it)", flush=True)
    if warning := warning_of(host, runs_folder):
        print(as_note(warning, "B601"), flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("studio: ended", flush=True)
        planners.close()
        # Threads of the server and of the libraries are left as they are: ending them in the middle
        # of a model aborts the process.
        os._exit(0)


def warning_of(host: str, runs_folder: Path | None) -> str:
    """Return a warning if other machines see the page."""
    if is_local(host):
        return ""
    runs = ""
    if runs_folder is not None:
        runs = f", and the runs in {runs_folder}; --only-fit leaves them out"
    return f"on {host} every machine that reaches this one sees the page{runs}."
