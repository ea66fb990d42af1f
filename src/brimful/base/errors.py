"""The errors a user can meet. Each says what, where, the rule and what to do next; the CLI prints
it and exits with `exit_code`.
"""


class BrimfulError(Exception):
    """Root of every error brimful raises on purpose."""

    exit_code = 2
    is_known_to_ranks = False
    """Whether the other ranks of a run end with it, too."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback (IPython asks for it by this name)."""
        return [f"brimful: {self}"]


class RecipeError(BrimfulError):
    """The recipe, or a `key=value` beside it, breaks a rule. Lists every problem at once."""


class DataError(BrimfulError):
    """The data cannot be read or does not support what the recipe asks of it."""


class DeviceError(BrimfulError):
    """An accelerator is unknown, absent, or cannot do what was asked."""


class PlanError(BrimfulError):
    """No plan keeps the recipe's promises on this device."""


class RunFolderError(BrimfulError):
    """The run folder is not usable: another run, another writer, not writable, not a run."""


class CheckpointError(BrimfulError):
    """A checkpoint cannot be written, or none can be trusted."""


class LibraryError(BrimfulError):
    """Installed libraries do not fit each other."""


class RequestError(BrimfulError):
    """A generation or evaluation request cannot be served as asked."""


class TrainingStopped(BrimfulError):
    """Training gave up for a stated reason; what was trained so far is kept."""

    exit_code = 1


class StartAgain(TrainingStopped):
    """Training on several devices has to start again from its newest checkpoint."""

    exit_code = 78


class Interrupted(BrimfulError):
    """A signal asked to stop; what was done is kept: a checkpoint at a step boundary, or
    samples.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class SessionOver(Interrupted):
    """The session's end came near; a checkpoint was written in time. The exit code is sysexits'
    "try again later".
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, 0)
        self.exit_code = 75


class RanksParted(BrimfulError):
    """Another process of a run on several devices has ended, so that this one cannot go on."""

    exit_code = 77
