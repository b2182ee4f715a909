"""The openai client through jevproxy, before real servers.

Of the servers of the OpenAI API on PyPI that need no model, five were looked at: mock-ai-api (speech, but no image
edits, and packages named `app` and `server`), mockllm and fakellm (chat alone), mock-myna (not to be had), llmock.
llmock has chat, streams, images, uploads, faults on demand and a journal of what it saw, but no speech and no image
edits: those come from `studio`, on the frameworks that llmock brings.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.client import Client
from tests.generation.studio import HEADER, PIECE
from tests.servers import BIN, Program, free_port, listens, start_jevproxy, wait_until

MESSAGES: Any = [{"role": "user", "content": "How do parcels travel? " * 20}]
ROUTES = "generation,POST /v1/files,GET /v1/files/*"
# Beyond any test's patience: what it stalls is ended, or the test fails.
STALL = {"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 600}


@pytest.fixture(scope="module")
def mock() -> Iterator[Program]:
    url = f"http://127.0.0.1:{free_port()}"
    argv = [BIN / "llmock", "serve", "--port", url.rpartition(":")[2], "--response-style", "echo"]
    with Program(argv, {"NO_COLOR": "1"}, url=url, ready=lambda: listens(url)) as program:
        yield program


@pytest.fixture(scope="module")
def studio() -> Iterator[Program]:
    url = f"http://127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "uvicorn", "--port", url.rpartition(":")[2], "tests.generation.studio:app"]
    with Program(argv, {}, url=url, ready=lambda: listens(url)) as program:
        yield program


def client_of(program: Program) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{program.url}/v1", api_key="sk-test", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def direct(mock: Program) -> Iterator[openai.OpenAI]:
    with client_of(mock) as client:
        yield client


@pytest.fixture(scope="module")
def client(mock: Program) -> Iterator[openai.OpenAI]:
    with start_jevproxy(mock.url, OMNI_JEV_ROUTES=ROUTES) as proxy, client_of(proxy) as client:
        yield client


@pytest.fixture(scope="module")
def studio_client(studio: Program) -> Iterator[openai.OpenAI]:
    with start_jevproxy(studio.url, OMNI_JEV_ROUTES=ROUTES) as proxy, client_of(proxy) as client:
        yield client


def call(program: Program, path: str, document: object = None) -> Any:
    """Asks a server itself, past the proxy."""
    with Client(program.url) as client:
        status, answer = client.get(path) if document is None else client.post(document, path)
    assert 200 <= status < 300, answer
    return answer


def play(mock: Program, *behaviors: dict[str, object]) -> None:
    """What llmock does to the next requests; its journal starts anew."""
    call(mock, "/_llmock/reset", {})
    call(mock, "/_llmock/scenario", {"behaviors": behaviors})


def test_chat(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    answers = [asked.chat.completions.create(model="gpt-4o", messages=MESSAGES) for asked in (client, direct)]
    assert answers[0].choices == answers[1].choices and answers[0].usage == answers[1].usage


def test_streamed_chat(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    texts = []
    for asked in (client, direct):
        with asked.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True) as stream:
            choices = [chunk.choices[0] for chunk in stream if chunk.choices]
        assert choices[-1].finish_reason == "stop" and len(choices) > 5
        texts.append("".join(choice.delta.content or "" for choice in choices))
    assert texts[0] == texts[1] != ""


def test_an_aborted_stream_is_seen_by_the_server(mock: Program, client: openai.OpenAI) -> None:
    play(mock, STALL)
    stream = client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
    next(iter(stream))
    stream.close()

    def seen() -> bool:
        requests = call(mock, "/_llmock/requests")["requests"]
        return bool(requests) and requests[0]["completed"] is False and requests[0]["chunks_sent"] < 5

    wait_until(seen, what="the aborted stream in the journal")


def test_a_stream_that_the_server_drops_fails_in_the_client(mock: Program, client: openai.OpenAI) -> None:
    play(mock, {"type": "stream_fault", "kind": "disconnect", "after_chunks": 2})
    stream = client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIConnectionError), stream:
        list(stream)


def test_a_servers_error_keeps_its_shape(mock: Program, client: openai.OpenAI, direct: openai.OpenAI) -> None:
    errors = []
    for asked in (client, direct):
        play(mock, {"type": "fail", "status": 429})
        with pytest.raises(openai.RateLimitError) as caught:
            asked.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        errors.append((caught.value.body, caught.value.response.headers.get("retry-after")))
    assert errors[0] == errors[1]


def test_images_and_models(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    images = [
        asked.images.generate(model="gpt-image-1", prompt="a hat", response_format="b64_json").data
        for asked in (client, direct)
    ]
    assert images[0] == images[1]
    assert [m.id for m in client.models.list()] == [m.id for m in direct.models.list()]


def test_an_upload_comes_back(client: openai.OpenAI) -> None:
    lines = "".join(json.dumps({"n": n, "text": "帽子"}) + "\n" for n in range(2000)).encode()
    file = client.files.create(file=("../../x.jsonl", lines), purpose="batch")
    assert client.files.content(file.id).content.decode() == lines.decode()


def test_an_image_edit_with_an_upload(studio_client: openai.OpenAI) -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8000
    edited = studio_client.images.edit(model="m", image=("帽子 ../x.png", image), prompt="a red hat").data
    assert edited and base64.b64decode(edited[0].b64_json or "") == image
    assert edited[0].revised_prompt == "帽子 ../x.png: a red hat"


def test_speech_to_a_file(studio_client: openai.OpenAI, tmp_path: Path) -> None:
    said = "a parcel " * 20
    with studio_client.audio.speech.with_streaming_response.create(
        model="tts", voice="alloy", input=said
    ) as spoken:
        assert spoken.headers["content-type"] == "audio/wav"
        spoken.stream_to_file(tmp_path / "said.wav")
    assert (tmp_path / "said.wav").read_bytes() == HEADER + PIECE * 40


def test_speech_that_nobody_hears_ends(studio: Program, studio_client: openai.OpenAI) -> None:
    before = call(studio, "/ended")
    with studio_client.audio.speech.with_streaming_response.create(
        model="tts", voice="alloy", input="word " * 1_000_000
    ) as spoken:
        assert next(spoken.iter_bytes(len(HEADER)))
    wait_until(
        lambda: call(studio, "/ended")["left"] == before["left"] + 1, what="the server's generator ended"
    )


def test_a_validation_error_keeps_its_shape(studio_client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        studio_client.post("/audio/speech", body={"model": "tts"}, cast_to=object)
    assert caught.value.response.json()["detail"][0]["loc"] == ["body", "input"]


def test_our_own_errors_reach_the_user() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with (
        start_jevproxy(nowhere, OMNI_JEV_ROUTES=ROUTES) as proxy,
        client_of(proxy) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert caught.value.status_code == 502 and "The backend cannot be reached." in str(caught.value)
