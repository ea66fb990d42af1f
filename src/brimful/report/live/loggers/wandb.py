"""Weights & Biases. Its files lie in `RUN/wandb`; every session goes on with the same run of W&B.

Where and whether to send them is said by W&B's own settings (`wandb login`, WANDB_MODE,
WANDB_PROJECT ...). Without credentials nothing is asked on the terminal: the files are written
offline.
"""

from typing import Any

from brimful.base.types import Counts, Numbers
from brimful.report.live.logger import OPENING_S, LoggedRun, Logger, from_extra

DEFAULT_PROJECT = "brimful"


class _WandbLog:
    def __init__(self, run: LoggedRun) -> None:
        # An extra.
        import wandb  # noqa: PLC0415

        folder = run.folder / "wandb"
        is_known_here = any(folder.glob(f"*run-*-{run.run_id}"))
        settings = wandb.setup().settings
        self._run: Any = wandb.init(
            project=run.project or settings.project or DEFAULT_PROJECT,
            id=run.run_id,
            name=run.folder.name,
            dir=str(run.folder),
            mode=_mode(settings),
            resume="allow",
            reinit="create_new",
            config=dict(run.settings),
            allow_val_change=True,
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=OPENING_S, x_disable_stats=True
            ),
        )
        self.held: Counts = {}
        if is_known_here or self._run.resumed:
            self.held = run.recorded

    def add(self, group: str, values: Numbers, step: int, unix_s: float | None) -> None:
        self._run.log({f"{group}/{name}": value for name, value in values.items()}, step=step)

    def flush(self) -> None:
        """W&B's own process sends what it gets."""

    def close(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


def _mode(settings: Any) -> str:
    """Return W&B's mode; "offline" instead of "online" where it would ask for a key."""
    # Comes with wandb.
    import requests.utils  # noqa: PLC0415

    has_key = (
        settings.api_key
        or settings.identity_token_file
        or requests.utils.get_netrc_auth(settings.base_url)
    )
    return "offline" if settings.mode == "online" and not has_key else str(settings.mode)


def _notice(run: LoggedRun) -> str:
    import wandb  # noqa: PLC0415

    settings = wandb.setup().settings
    if settings.mode == "online" and _mode(settings) == "offline":
        return (
            "Weights & Biases has no key on this machine, so its files are written offline. Send"
            f" them later: wandb login, then wandb sync {run.folder / 'wandb'}/offline-run-*"
        )
    return ""


LOGGER = Logger("Weights & Biases", _WandbLog, from_extra("wandb"), lambda _: "", _notice)
