"""Hub data sets, with the network replaced by data sets made in memory."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

import datasets
import huggingface_hub
import pytest
from fixture_types import Refuses
from huggingface_hub import constants, errors
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data import hub
from brimful.data.labelled import read_labelled
from brimful.data.rows import Row
from brimful.data.sources import open_rows, open_source
from brimful.recipe import DataRecipe, Recipe

Make = Callable[..., DataRecipe]
Serve = Callable[[dict[str, dict[str, list[Any]]]], list[tuple[Any, ...]]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Make `load_dataset` answer with these columns per split; gives the list of its calls."""

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "_asked", lambda path, revision: "")

    def start(splits: dict[str, dict[str, list[Any]]]) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        made = datasets.DatasetDict(
            {name: datasets.Dataset.from_dict(columns) for name, columns in splits.items()}
        )
        monkeypatch.setattr(
            datasets,
            "load_dataset",
            lambda *args, **options: calls.append((*args, options)) or made,
        )
        return calls

    return start


def test_splits_are_mapped_and_the_rest_is_noted(
    serve: Serve, data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """Configuration and revision are passed on."""
    calls = serve({"train": {"text": ["a", "b"]}, "dev": {"text": ["c"]}, "extra": {"text": ["d"]}})
    source = open_source(data_recipe("owner/name", config_name="small", revision="abc"))
    splits = source.parts[0].splits
    assert {name: list(documents) for name, documents in splits.items()} == {
        "train": ["a", "b"],
        "validation": ["c"],
    }
    assert calls == [("owner/name", "small", {"revision": "abc"})]
    assert source.notes == snapshot


def test_rows_that_are_lines_become_documents(serve: Serve, data_recipe: Make) -> None:
    """As in Salesforce/wikitext."""
    serve({"train": {"text": ["", " = A = \n", "", " x \n", " = B = \n", " y \n"]}})
    source = open_source(data_recipe("Salesforce/wikitext", document_start="^ = [^=]"))
    assert list(source.parts[0].splits["train"]) == [" = A = \n\n x \n", " = B = \n y \n"]


def test_rows_are_read_with_all_their_columns(serve: Serve, data_recipe: Make) -> None:
    """Lists of messages, too."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    serve({"train": {"messages": [messages], "id": [7]}})
    rows = open_rows(data_recipe("owner/name")).parts[0].splits["train"]
    assert list(rows) == [
        Row({"messages": messages, "id": 7}, "data set owner/name, split train, row 1")
    ]


def test_the_only_split_trains_and_several_without_train_are_refused(
    serve: Serve, data_recipe: Make, refuses: Refuses
) -> None:
    """brimful does not guess which of several it is."""
    serve({"all": {"text": ["a"]}})
    assert list(open_source(data_recipe("owner/name")).parts[0].splits["train"]) == ["a"]
    serve({"one": {"text": ["a"]}, "two": {"text": ["a"]}})
    with refuses(DataError):
        open_source(data_recipe("owner/name"))


def test_a_missing_column_and_an_empty_cell_are_named(
    serve: Serve, data_recipe: Make, refuses: Refuses
) -> None:
    """Columns at once, cells when they are read."""
    serve({"train": {"body": ["a"]}})
    with refuses(DataError, names=["'text'"]):
        open_source(data_recipe("owner/name"))
    serve({"train": {"text": ["a", None]}})
    with refuses(DataError, names=["row 2", "'text'"]):
        list(open_source(data_recipe("owner/name")).parts[0].splits["train"])


def test_a_failure_to_load_says_that_a_local_path_works(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, data_recipe: Make, refuses: Refuses
) -> None:
    """Whatever the library raises, in one sentence."""
    serve({})

    def fail(*args: Any, **options: Any) -> None:
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub.\nlong trace")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with refuses(DataError, names=["'owner/name'", "data.path=FILE"]) as caught:
        open_source(data_recipe("owner/name"))
    assert "long trace" not in str(caught.value)


@pytest.fixture
def hub_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Exception], list[float]]:
    """The hub's answer to whether a data set exists; gives the list of timeouts asked with."""

    def start(error: Exception) -> list[float]:
        timeouts: list[float] = []

        def answer(self: Any, path: str, *, revision: str | None, timeout: float) -> None:
            timeouts.append(timeout)
            raise error

        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", answer)
        return timeouts

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    return start


def test_a_hub_out_of_reach_is_asked_once_and_said(
    hub_raises: Callable[[Exception], list[float]], refuses: Refuses
) -> None:
    """With the reason's first line."""
    timeouts = hub_raises(ConnectionError("Name or service not known\nlong trace"))
    with refuses(DataError, names=["owner/name", "Name or service not known"]):
        hub.check_there("owner/name", None)
    assert len(timeouts) == 1
    assert constants.HF_HUB_OFFLINE is False


def test_a_data_set_that_was_downloaded_is_used_without_the_hub(
    hub_raises: Callable[[Exception], list[float]], tmp_path: Path
) -> None:
    """From then on the libraries do not ask for it either, with their many tries."""
    hub_raises(ConnectionError("no network"))
    (tmp_path / "datasets" / "owner___name").mkdir(parents=True)
    hub.check_there("owner/name", None)
    assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (True, True)


def test_what_the_hub_does_not_have_or_does_not_give_is_named(
    hub_raises: Callable[[Exception], list[float]], refuses: Refuses
) -> None:
    """A data set, a revision, access."""
    for kind in (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.GatedRepoError,
    ):
        hub_raises(kind.__new__(kind))
        with refuses(DataError, names=["owner/name"]):
            hub.check_there("owner/name", "abc")


def test_without_the_network_by_choice_the_hub_is_not_asked(
    hub_raises: Callable[[Exception], list[float]],
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    """HF_HUB_OFFLINE."""
    timeouts = hub_raises(ConnectionError("no network"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refuses(DataError, names=["HF_HUB_OFFLINE", "data.path=FILE"]):
        hub.check_there("owner/name", None)
    assert timeouts == []


def test_of_many_tries_one_line_is_printed() -> None:
    """In place of one line and one address for each."""
    logger, one_line = logging.getLogger("tries"), hub._OneLine()
    logger.addFilter(one_line)
    with TestCase().assertLogs(logger) as logged:
        for number in range(5):
            logger.warning("Retrying in %ss [Retry %s/5].", number, number)
    assert [record.getMessage() for record in logged.records] == [
        "the Hugging Face hub is slow to answer; trying again"
    ]


def test_what_cannot_be_a_hub_id_is_not_asked_for(
    serve: Serve, data_recipe: Make, refuses: Refuses
) -> None:
    """Such as a path three folders deep."""
    calls = serve({"train": {"text": ["a"]}})
    with refuses(DataError):
        open_source(data_recipe("some/deep/path"))
    assert calls == []


def test_the_fingerprint_follows_the_rows(serve: Serve, data_recipe: Make) -> None:
    """Other rows, other fingerprint."""
    serve({"train": {"text": ["a"]}})
    first = open_source(data_recipe("owner/name")).fingerprint
    again = open_source(data_recipe("owner/name")).fingerprint
    serve({"train": {"text": ["b"]}})
    assert first == again != open_source(data_recipe("owner/name")).fingerprint


def test_a_column_by_number_is_the_data_sets(
    serve: Serve, data_recipe: Make, refuses: Refuses
) -> None:
    """In the order of its columns."""
    serve({"train": {"id": [1, 2], "body": ["a", "b"]}})
    assert list(open_source(data_recipe("owner/name", text_column=1)).parts[0].splits["train"]) == [
        "a",
        "b",
    ]
    with refuses(DataError):
        open_source(data_recipe("owner/name", text_column=2))


def test_labelled_rows_come_from_the_hub_as_well(serve: Serve) -> None:
    """With the data set's splits, but a test split whose labels are not published."""
    texts = [f"{word} {number}" for number in range(10) for word in ("good", "bad")]
    serve(
        {
            "train": {"sentence": texts, "label": [1, 0] * 10},
            "validation": {"sentence": ["fine", "poor"], "label": [1, 0]},
            "test": {"sentence": ["?"], "label": [-1]},
        }
    )
    values = {
        "name": "a",
        "method": "classify",
        "sequence_length": 8,
        "batch": {"sequences": 1},
        "training": {"steps": 1},
        "model": "owner/model",
        "data": {"path": "owner/name", "text_column": "sentence"},
        "optimizer": {"learning_rate": 1e-3},
    }
    found = read_labelled(Recipe.model_validate(values))
    assert {name: split.targets.tolist() for name, split in found.splits.items()} == {
        "train": [1, 0] * 10,
        "validation": [1, 0],
    }
    assert found.splits["validation"].wheres == (
        "data set owner/name, split validation, row 1",
        "data set owner/name, split validation, row 2",
    )
    assert found.labels.names == ("0", "1")
