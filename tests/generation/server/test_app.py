"""The server, asked over HTTP as its clients do: OpenAI's own client, and what hostile ones send."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
import uvicorn
from transformers import PreTrainedTokenizerFast

from brimful.base.local_server import Guard, config_of
from brimful.data.chat import Template
from brimful.generation.engine import Engine
from brimful.generation.load import LoadedRun, load_run
from brimful.generation.sampler import GREEDY
from brimful.generation.samples import draw_samples
from brimful.generation.server.app import Front, RequestLimits
from brimful.generation.server.writer import SharedWriter

CHAT_TEMPLATE = (
    "{% for each in messages %}{{ each.role }}: {{ each.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
KEY, ENDLESS = "secret", 10**8
SOON_S = 60.0


@dataclass
class Served:
    """A server in a thread."""

    loaded: LoadedRun
    writer: SharedWriter
    address: str

    def post(self, path: str, **fields: Any) -> httpx2.Response:
        return httpx2.post(f"{self.address}{path}", json=fields, headers=bearer(), timeout=SOON_S)


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}"}


@pytest.fixture
def serve(
    make_run: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> Iterator[Callable[..., Served]]:
    running: list[tuple[uvicorn.Server, threading.Thread, SharedWriter]] = []

    def start(
        *, is_chat: bool = True, is_endless: bool = False, head_s: float = 60.0, **limits: Any
    ) -> Served:
        loaded = load_run(make_run(), torch.device("cpu"), torch.float32)
        if is_chat:
            loaded.tokenizer.chat_template = CHAT_TEMPLATE
            template = Template.of(loaded.tokenizer, "chat")
            loaded = replace(loaded, template=template, takes_messages=True)
        ends = frozenset({0})
        if is_endless:
            ends, limits["tokens"] = frozenset(), ENDLESS
            loaded.model.config.max_position_embeddings = 2 * ENDLESS
        writer = SharedWriter(Engine(loaded.model, loaded.tokenizer), ends, most_waiting=16)
        front = Front(loaded, writer, RequestLimits(**{"tokens": 24, "time_s": 60.0, **limits}))
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(config_of(Guard(front.app(), key=KEY), head_s))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        running.append((server, thread, writer))
        return Served(loaded, writer, f"http://127.0.0.1:{listening.getsockname()[1]}")

    yield start
    for server, thread, writer in running:
        server.should_exit = True
        thread.join()
        writer.close()


@pytest.fixture
def client(serve: Callable[..., Served]) -> Iterator[Any]:
    """OpenAI's client of a chat model."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(
        base_url=f"{serve().address}/v1", api_key=KEY, max_retries=0, timeout=SOON_S
    ) as made:
        yield made


ASKED = [{"role": "user", "content": "the cat"}]


def test_openais_client_chats(client: Any) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=6, temperature=0, n=2, logprobs=True
    )
    first, second = chat.choices
    assert first.message.content == second.message.content
    assert first.message.role == "assistant"
    assert first.finish_reason in {"stop", "length"}
    assert len(first.logprobs.content) == chat.usage.completion_tokens / 2 <= 6
    assert all(each.logprob <= 0 for each in first.logprobs.content)


def test_openais_client_streams_the_same_chat(client: Any) -> None:
    settings = {"model": "tiny", "messages": ASKED, "max_completion_tokens": 8, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**settings)
    parts = list(
        client.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = ["", ""]
    for part in parts:
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert parts[-1].usage == whole.usage
    assert {part.object for part in parts} == {"chat.completion.chunk"}


def test_openais_client_goes_on_with_texts(client: Any) -> None:
    settings = {"model": "tiny", "max_tokens": 5, "temperature": 0}
    text = client.completions.create(prompt="the cat", logprobs=0, echo=True, **settings)
    assert text.choices[0].text.startswith("the cat")
    assert len(text.choices[0].logprobs.tokens) == text.usage.completion_tokens
    several = client.completions.create(prompt=["the cat", "the rat"], **settings)
    assert "the cat" + several.choices[0].text == text.choices[0].text
    by_ids = client.completions.create(prompt=[[5, 9], [5, 9]], **settings)
    assert by_ids.choices[0].text == by_ids.choices[1].text
    streamed = client.completions.create(prompt="the cat", stream=True, echo=True, **settings)
    assert "".join(part.choices[0].text for part in streamed) == text.choices[0].text


def test_openais_client_lists_the_model(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_openais_client_reads_mistakes_as_such(client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="tiny", prompt="x", max_tokens=-1)
    with pytest.raises(openai.NotFoundError, match="only 'tiny'"):
        client.completions.create(model="other", prompt="x")
    with (
        openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_an_answer_is_what_generate_writes(serve: Callable[..., Served]) -> None:
    """The same prompt ids, seed and settings, whatever else is being written."""
    served = serve()
    sample = draw_samples(served.loaded, "the cat", GREEDY, max_new_tokens=8, count=1, seed=0)[0]
    answer = served.post(
        "/v1/chat/completions", model="tiny", messages=ASKED, max_tokens=8, temperature=0
    ).json()
    assert answer["choices"][0]["message"]["content"] == sample.completion


def test_a_stop_text_ends_an_answer(serve: Callable[..., Served]) -> None:
    served = serve()
    asked = {"model": "tiny", "prompt": "the cat", "max_tokens": 8, "temperature": 0}
    whole = served.post("/v1/completions", **asked).json()["choices"][0]["text"]
    stopped = served.post("/v1/completions", **asked, stop=whole[2:4]).json()["choices"][0]
    assert stopped["text"] == whole[: whole.index(whole[2:4])]
    assert stopped["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": 10**9}, "at most"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": "the cat " * 100}, "prompt of"),
        ({"prompt": [10**6]}, "token id 1000000"),
        ({"prompt": "x" * 2**20}, "1,048,576"),
        ({"prompt": "x" * 2**24}, "1,048,576"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"n": 64}, "too many"),
    ],
)
def test_plain_mistakes_are_answered_plainly(
    serve: Callable[..., Served], fields: dict[str, Any], says: str
) -> None:
    answer = serve().post("/v1/completions", **{"model": "tiny", "prompt": "x", **fields})
    assert answer.status_code in {400, 413, 503}
    assert says in answer.json()["error"]["message"]


def test_a_chat_without_a_template_is_told_where_to_go(serve: Callable[..., Served]) -> None:
    answer = serve(is_chat=False).post("/v1/chat/completions", model="tiny", messages=ASKED)
    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/load_model", "/reset", "/v1/responses", "/docs", "/", "/v1/../etc/passwd"]
)
def test_other_paths_are_closed(serve: Callable[..., Served], path: str) -> None:
    assert serve().post(path, model="x").status_code in {404, 405}


def test_a_page_of_another_site_is_refused(serve: Callable[..., Served]) -> None:
    served = serve()
    asked = {"model": "tiny", "prompt": "x"}
    for more in ({"Host": "site.example"}, {"Origin": "http://site.example"}):
        refused = httpx2.post(
            f"{served.address}/v1/completions", json=asked, headers={**bearer(), **more}
        )
        assert refused.status_code == 403
    form = httpx2.post(
        f"{served.address}/v1/completions", content=json.dumps(asked), headers=bearer()
    )
    assert form.status_code == 415


def begun(served: Served, count: int) -> None:
    """Wait until so many texts are being written."""
    end_s = time.monotonic() + SOON_S
    while len(served.writer._begun) != count:
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_written_on_for_a_client_that_left(
    serve: Callable[..., Served], stream: bool
) -> None:
    """The text would take millions of tokens."""
    served = serve(is_endless=True)
    asked = {"model": "tiny", "prompt": "x", "max_tokens": ENDLESS, "stream": stream}
    body = json.dumps(asked).encode()
    port = int(served.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        begun(served, 1)
    begun(served, 0)


def test_a_long_answer_is_given_up(serve: Callable[..., Served]) -> None:
    served = serve(is_endless=True, time_s=0.5)
    asked = {"model": "tiny", "prompt": "x", "max_tokens": ENDLESS}
    whole = served.post("/v1/completions", **asked)
    assert (whole.status_code, "0.5 s" in whole.text) == (504, True)
    streamed = served.post("/v1/completions", **asked, stream=True)
    assert "0.5 s" in streamed.text
    assert "[DONE]" not in streamed.text
    begun(served, 0)


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nHost: local"])
def test_a_connection_on_which_no_request_begins_is_closed(
    serve: Callable[..., Served], sent: bytes
) -> None:
    port = int(serve(head_s=0.2).address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as client:
        client.sendall(sent)
        assert client.recv(1000) == b""


def test_a_request_that_does_not_arrive_is_given_up(serve: Callable[..., Served]) -> None:
    served = serve(body_time_s=0.2)
    port = int(served.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
        )
        client.settimeout(SOON_S)
        assert b"408" in client.recv(1000)
