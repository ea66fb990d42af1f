"""One thread writes for all: what it tells, to whom, and when it stops."""

import queue
from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.generation.engine import Engine, generate
from brimful.generation.requests import Generation, Request
from brimful.generation.sampler import GREEDY
from brimful.generation.server.writer import Busy, SharedWriter, Text, Update

Told = queue.SimpleQueue[Update]
SOON_S = 60.0


@pytest.fixture
def writer(tiny_llama: PreTrainedModel) -> Iterator[SharedWriter]:
    made = SharedWriter(Engine(tiny_llama), frozenset(), most_waiting=4)
    yield made
    made.close()


def asked(told: Told, key: int = 0, tokens: int = 6) -> Text:
    return Text(Request(key, (5, 9, 20), 0, tokens, GREEDY), told.put)


def all_of(told: Told) -> tuple[list[int], Generation]:
    ids = []
    while True:
        update = told.get(timeout=SOON_S)
        if isinstance(update, Generation):
            return ids, update
        assert isinstance(update, tuple)
        ids.append(update[0])


def test_every_token_is_told_and_then_the_whole(
    writer: SharedWriter, tiny_llama: PreTrainedModel
) -> None:
    told = [Told(), Told()]
    writer.put([asked(each, key) for key, each in enumerate(told)])
    alone = generate(
        tiny_llama, [[5, 9, 20]], GREEDY, max_new_tokens=6, stop_ids=frozenset(), seeds=[0]
    )[0]
    for each in told:
        ids, whole = all_of(each)
        assert ids == whole.token_ids == alone.token_ids


def test_what_is_not_wanted_any_more_is_not_written_on(writer: SharedWriter) -> None:
    told, after = Told(), Told()
    endless = asked(told, 0, 10**9)
    writer.put([endless])
    told.get(timeout=SOON_S)
    endless.is_wanted = False
    writer.put([asked(after, 1)])
    all_of(after)
    assert list(writer._begun) == []


def test_too_many_at_once_are_refused(writer: SharedWriter) -> None:
    with pytest.raises(Busy):
        writer.put([asked(Told(), key) for key in range(5)])


def test_what_cannot_be_written_is_refused_and_the_rest_goes_on(writer: SharedWriter) -> None:
    with pytest.raises(RequestError, match="token id 999"):
        writer.put([Text(Request(0, (999,), 0, 4), Told().put)])
    told = Told()
    writer.put([asked(told)])
    assert len(all_of(told)[0]) == 6


def test_a_failure_is_told_to_all_and_the_next_is_written(
    writer: SharedWriter, tiny_llama: PreTrainedModel
) -> None:
    """Weights that are no numbers make scores that are none."""
    weight = next(tiny_llama.parameters())
    kept, told = weight.detach().clone(), Told()
    with torch.no_grad():
        weight.fill_(float("nan"))
    writer.put([asked(told)])
    assert isinstance(told.get(timeout=SOON_S), RequestError)
    with torch.no_grad():
        weight.copy_(kept)
    writer.put([asked(told, 1)])
    assert len(all_of(told)[0]) == 6


def test_a_model_that_cannot_begin_is_told_to_each_who_asks(
    tiny_llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine fails before it takes any request."""
    engine, told = Engine(tiny_llama), [Told(), Told()]

    def fails(*args: object) -> bool:
        raise ValueError("no such layer")

    monkeypatch.setattr("brimful.generation.engine.Slots.suit", fails)
    writer = SharedWriter(engine, frozenset(), most_waiting=4)
    for key, each in enumerate(told):
        writer.put([asked(each, key)])
        assert "no such layer" in str(each.get(timeout=SOON_S))
    writer.close()


def test_closing_ends_what_is_being_written(tiny_llama: PreTrainedModel) -> None:
    writer, told = SharedWriter(Engine(tiny_llama), frozenset(), most_waiting=4), Told()
    writer.put([asked(told, 0, 10**9)])
    told.get(timeout=SOON_S)
    writer.close()
    assert not writer._thread.is_alive()
