"""Upload a finished run's model to the hub, with a model card made of its report."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.base.console import Say
from brimful.base.env import hub_is_offline
from brimful.base.errors import RequestError
from brimful.base.manifest import MANIFEST
from brimful.base.text import reason_of
from brimful.base.time_limit import hub_limits
from brimful.base.units import format_bytes
from brimful.generation.export import Exported
from brimful.model.quiet import without_progress_bars
from brimful.report.model_card import PEFT, base_on_hub, library_of, model_card
from brimful.runs.folder import RunFolder, read_run

CARD = "README.md"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LONGEST_NAME = 96
"""Characters of a repository's name that the hub takes."""


@dataclass(frozen=True)
class Upload:
    """What goes to the hub.

    Attributes:
        repository: USER/NAME.
        files: Files by their names there.
        card: The text of README.md.
    """

    repository: str
    files: tuple[Path, ...]
    card: str

    def lines(self) -> list[str]:
        """For people: the files with their sizes, and the card."""
        sizes = [(path.name, path.stat().st_size) for path in self.files]
        sizes.append((CARD, len(self.card.encode())))
        width = max(len(name) for name, _ in sizes)
        total = sum(size for _, size in sizes)
        listed = [f"  {name:{width}}  {format_bytes(size)}" for name, size in sizes]
        heading = f"{self.repository}: {len(sizes)} files, {format_bytes(total)}"
        return [heading, *listed, "", f"{CARD}:", "", *self.card.splitlines()]


def require_name(name: str) -> None:
    """Raise RequestError if a name cannot be that of a repository."""
    part = name.partition("/")[2]
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME or "--" in name or ".." in part:
        raise RequestError(
            f"--push {name}: write USER/NAME, your name on the hub and the repository's, in"
            " letters, digits, '-', '_' and '.', for example --push ada/stories."
        )


def require_token() -> None:
    """Raise RequestError if nothing can be uploaded from here, before anything is written."""
    import huggingface_hub  # noqa: PLC0415 - half a second

    if hub_is_offline():
        raise RequestError(
            "--push needs the hub, and HF_HUB_OFFLINE is set. Unset it, or add --dry-run to see"
            " what would be uploaded."
        )
    if huggingface_hub.get_token() is None:
        raise RequestError(
            "--push needs a token of the hub that may write, and there is none here. Make one at"
            " https://huggingface.co/settings/tokens, then `hf auth login`, or set HF_TOKEN. With"
            " --dry-run nothing is uploaded."
        )


def export_and_push(
    run_folder: Path,
    write: Callable[[], Exported],
    repository: str,
    say: Say,
    *,
    private: bool = False,
    dry_run: bool = False,
) -> None:
    """Export a run's model, then upload it, or say what would be uploaded.

    Args:
        write: Makes the export, or finds that it is there already.
        private: Whether a repository that is made for it is private.

    Raises:
        BrimfulError: as `write`.
        RequestError: a name that is none, no token, no network, or adapters that only this machine
            can use.
    """
    require_name(repository)
    if not dry_run:
        require_token()
    exported = write()
    say("\n".join(exported.lines()))
    upload = upload_of(run_folder, exported.folder, repository)
    if dry_run:
        say("\n".join(upload.lines()))
        return
    push(upload, say, private=private)


def upload_of(run_folder: Path, exported: Path, repository: str) -> Upload:
    """Return what goes to the hub for an export of a run: its files and a card.

    Raises:
        RunFolderError: there is no such run.
        RequestError: adapters whose base only this machine has.
    """
    run = read_run(run_folder)
    paths = sorted(exported.iterdir()) if exported.is_dir() else [exported]
    files = tuple(path for path in paths if path.is_file() and path.name != MANIFEST)
    _refuse_lonely_adapters(run, [path.name for path in files])
    card = model_card(run, repository, [path.name for path in files])
    return Upload(repository, files, card)


def _refuse_lonely_adapters(run: RunFolder, files: Sequence[str]) -> None:
    if library_of(files) == PEFT and not base_on_hub(run):
        raise RequestError(
            f"the base of {run.name}'s adapters is a folder of this machine, so nobody could use"
            " them from the hub. Push the whole model: add --merge."
        )


def push(upload: Upload, say: Say, *, private: bool = False) -> None:
    """Make the repository where it is missing, and upload everything in one commit.

    Raises:
        RequestError: the hub cannot be reached, refuses, or never ends an answer.
    """
    from huggingface_hub import CommitOperationAdd, HfApi  # noqa: PLC0415 - half a second

    operations = [CommitOperationAdd(path.name, str(path)) for path in upload.files]
    operations.append(CommitOperationAdd(CARD, upload.card.encode()))
    hub = HfApi()
    try:
        with without_progress_bars(), hub_limits(sum(path.stat().st_size for path in upload.files)):
            hub.create_repo(upload.repository, private=private, exist_ok=True)
            made = hub.create_commit(
                upload.repository, operations, commit_message="Upload a model trained with brimful"
            )
    except Exception as error:  # the library's network and parsing layers raise any class
        raise _refused(upload, error) from error
    say(f"uploaded {len(operations)} files: {made.commit_url}")


def _refused(upload: Upload, error: Exception) -> RequestError:
    code = getattr(getattr(error, "response", None), "status_code", None)
    reason, what = reason_of(error), "Check the network, then run the same command again."
    if code in {401, 403}:
        what = (
            f"The token may not write to {upload.repository}: `hf auth whoami` says whose it is;"
            " make one that may write at https://huggingface.co/settings/tokens."
        )
    elif code is not None:
        what = "Run the same command again; what was exported is kept."
    return RequestError(f"{upload.repository} was not uploaded: {reason}. {what}")
