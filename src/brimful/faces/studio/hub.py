"""Whether the hub has a model, answered within two seconds."""

import queue
import threading
from pathlib import Path

from brimful.base.discover import did_you_mean
from brimful.base.errors import RequestError
from brimful.model import catalog

PATIENCE_S = 1.2
"""The hub has this long to answer: someone waits in front of the page."""


def refuse_unless_known(name: str) -> None:
    """Raise an error unless the catalog, this machine or, within `PATIENCE_S`, the hub knows a
    model.

    Raises:
        PlanError: there is no such model.
        RequestError: the hub did not answer in time.
    """
    if catalog.find(name) is not None or Path(name).expanduser().exists():
        return
    # Loaded before the clock starts.
    import transformers  # noqa: F401, PLC0415

    answer: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            catalog.config_of_model(name)
            answer.put(None)
        except Exception as error:
            answer.put(error)

    # Looking up the hub's address has no time limit of its own, so the thread may be left behind.
    threading.Thread(target=ask, daemon=True, name="brimful-hub").start()
    try:
        problem = answer.get(timeout=PATIENCE_S)
    except queue.Empty:
        hint = did_you_mean(name, catalog.names())
        raise RequestError(
            f"model {name!r} is not in the catalog{hint} The Hugging Face hub did not answer within"
            f" {PATIENCE_S:g} s. Ask again, or paste the model's config.json."
        ) from None
    if problem is not None:
        raise problem
