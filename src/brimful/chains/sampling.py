"""Sample answers to questions that can be verified: ask, judge, choose, keep on disk."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import xxhash
from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import RunFolderError
from brimful.base.manifest import entries_of, problem_of_file
from brimful.base.rundir import Lease, read_json, write_json_atomically
from brimful.base.types import Json, JsonDict
from brimful.chains.ranks import check_same_folder
from brimful.chains.sampling_questions import SamplingQuestions, rft_of
from brimful.chains.sampling_session import SamplingSession
from brimful.generation.author import Author
from brimful.recipe import Recipe, RftRecipe
from brimful.selection.journal import PAIRS_FILE, SAMPLES_FILE, TRAINING_FILE, kept_paths
from brimful.training.world import ALONE, World
from brimful.verify.sandbox import Sandbox

FACTS_FILE = "sampling.json"
_NOT_DECISIVE = {"rounds", "seeds", "with_demonstrations", "tuned_first"}
"""Keys of the section rft that do not change the samples of one drawing."""


def draw(
    recipe: Recipe,
    questions: SamplingQuestions,
    load_author: Callable[[], Author],
    folder: Path,
    console: Console,
    *,
    seed: int,
    author_id: str,
    before: Sequence[Path] = (),
    world: World = ALONE,
) -> JsonDict:
    """Draw, verify and choose samples: samples.jsonl, train.jsonl and sampling.json in a folder.
    The same call again continues where it stopped. The ranks of a `world` share the questions,
    and each verifies what it draws; the first one writes.

    Args:
        recipe: Its section rft says how many and how.
        questions: What is asked.
        load_author: Loads the model that answers; not called where everything is drawn already.
        folder: Made when absent.
        console: Shows progress.
        seed: The seed of all samples.
        author_id: Changes with the author's weights and prompt.
        before: Folders of earlier rounds: a path that was kept there is not kept again.

    Returns:
        What sampling.json holds.

    Raises:
        RunFolderError: the folder holds other samples.
        DataError: nothing can be kept.
        RequestError: no question fits into the author's context, or samples are missing.
        Interrupted: Ctrl-C; what was drawn is kept.
    """
    rft, path, say = rft_of(recipe), folder / FACTS_FILE, console_printer(console)
    known = kept_paths(before)
    sorted_paths = sorted((name, sorted(paths)) for name, paths in known.items())
    chosen_by = {
        "rft": _deciding(rft),
        "author": author_id,
        "seed": seed,
        "questions": questions.fingerprint,
        "known_paths": xxhash.xxh3_64_hexdigest(repr(sorted_paths).encode()),
    }
    if (done := world.first(lambda: _done(folder, chosen_by))) is not None:
        return dict(done)
    with ExitStack() as stack:
        leases: list[Lease] = []
        world.first(lambda: leases.append(_claim(folder, stack)))
        lease = leases[0] if world.is_first else None
        check_same_folder(world, folder, lease)
        sandbox = None
        if questions.verifier.needs_sandbox:
            sandbox = world.check(lambda: stack.enter_context(Sandbox()))
        session = SamplingSession(
            rft,
            replace(questions, known_paths=known),
            world.check(load_author),
            folder,
            seed=seed,
            author_id=author_id,
            sandbox=sandbox,
            world=world,
        )
        if session.journal is not None:
            stack.enter_context(session.journal)
            path.unlink(missing_ok=True)  # it describes files that are about to be replaced
        say("\n".join(session.opening_lines()))
        facts = {"chosen_by": chosen_by, **session.draw(recipe, lease, console)}
        made = (folder / name for name in (SAMPLES_FILE, TRAINING_FILE, PAIRS_FILE))
        if session.journal is not None:
            facts["files"] = entries_of(file for file in made if file.exists())
            facts["records"] = session.journal.num_records
            write_json_atomically(path, facts, with_checksum=True)
    return facts


def _deciding(rft: RftRecipe) -> JsonDict:
    """Return what of the section rft decides the samples of one drawing; a key that earlier
    versions did not know is there where it is not as they were.
    """
    decides = rft.model_dump(mode="json", exclude=_NOT_DECISIVE)
    if rft.pairs_per_prompt == RftRecipe.model_fields["pairs_per_prompt"].default:
        del decides["pairs_per_prompt"]
    return decides


def _claim(folder: Path, stack: ExitStack) -> Lease:
    """Make the folder, and lock it until the stack is left."""
    folder.mkdir(parents=True, exist_ok=True)
    return stack.enter_context(Lease.acquire(folder))


def _done(folder: Path, chosen_by: Json) -> JsonDict | None:
    """Return what sampling.json holds if the same samples were drawn and its files are as they were
    written. Else they are chosen again from all that was drawn.
    """
    try:
        facts = read_json(folder / FACTS_FILE)
    except RunFolderError:
        return None
    files = facts.get("files", {}).items()
    is_sound = not any(problem_of_file(folder, name, entry) for name, entry in files)
    return facts if is_sound and facts.get("chosen_by") == chosen_by else None
