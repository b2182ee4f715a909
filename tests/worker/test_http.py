"""The worker over real sockets: the contract's answers, its refusals, bodies of every kind, and batches."""

from __future__ import annotations

import gzip
import json
import threading
from contextlib import ExitStack
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.callers import Caller
from tests.client import Client
from tests.servers import Program, wait_until
from tests.worker.test_protocol import DOCUMENT

NOUL = {"type": "noul", "instructions": "Does the buyer ask for a refund?"}
CHOICE = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "refunds", "bugs": None, "ü🙂": []},
}
SCORE = {"type": "score", "instructions": "How upset?", "criteria": ["calm", {"label": "annoyed"}, "furious"]}
STATE = "Parcel 7731 arrived crushed, the buyer wants money back."
BASE = {"model": "jev-latest", "state": STATE, "questions": {"q": NOUL}}


def ask(**questions: Any) -> dict[str, Any]:
    return {"model": "demo", "state": STATE, "questions": questions}


def test_every_type_in_one_request(client: Client) -> None:
    body = json.dumps(ask(refund=NOUL, team=CHOICE, anger=SCORE)).encode()
    status, headers, found = client.send("POST", "/v1/systemone", body, {"X-Request-Id": "abc-1"})
    answer = json.loads(found)
    assert status == 200 and headers["content-type"] == "application/json"
    assert headers["x-request-id"] == headers["x-typesafe-request-id"] == "abc-1"
    assert [part.split(";")[0] for part in headers["server-timing"].split(", ")] == [
        "queue",
        "tokenize",
        "forward",
        "rows",
    ]
    assert headers["server-timing"].endswith('rows;desc="3"')
    assert answer["model"].startswith("demo@") and list(answer["answers"]) == ["refund", "team", "anger"]
    for name in ("team", "anger"):
        assert abs(sum(answer["answers"][name]["probabilities"].values()) - 1) < 1e-6
    assert list(answer["answers"]["team"]["probabilities"]) == list(CHOICE["criteria"])
    assert answer["answers"]["anger"]["legend"] == {"0": "calm", "1": {"label": "annoyed"}, "2": "furious"}
    assert "confidence" not in answer["answers"]["refund"]
    assert answer["usage"]["input_tokens"] > 0 and answer["usage"]["x_state_tokens_dropped"] == 0
    again = client.send("POST", "/v1/systemone", body)
    assert again[2] == found


def test_names_of_models(client: Client) -> None:
    status, listed = client.get("/v1/models")
    assert status == 200
    names = [model["name"] for model in listed["models"]]
    assert names == ["tiny", "demo", "jev-latest", "jev-preview"]
    assert all(len(model["release_date"]) == 10 and model["description"] for model in listed["models"])
    said = {name: client.post(BASE | {"model": name})[1]["model"].split("@")[0] for name in [*names, None]}
    assert said == {"tiny": "tiny", "demo": "demo", "jev-latest": "tiny", "jev-preview": "tiny", None: "tiny"}
    status, exact = client.post(BASE | {"model": "demo"})
    assert client.post(BASE | {"model": exact["model"]}) == (status, exact)
    status, refused = client.post(BASE | {"model": "no\x1bsuch\n" + "m" * 1000})
    assert status == 400 and refused["detail"]["error_type"] == "api_usage_error"
    assert "Unknown model" in refused["detail"]["message"] and len(refused["detail"]["message"]) <= 300
    assert "\x1b" not in refused["detail"]["message"]


def test_health_and_metrics(client: Client) -> None:
    status, health = client.get("/health")
    assert status == 200 and health["status"] == "ok"
    assert [model["name"] for model in health["models"]] == ["tiny", "demo"]
    status, headers, text = client.send("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain") and b"laya_ready 1.0" in text


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/systemone", 405, "POST"),
        ("OPTIONS", "/v1/systemone", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("GET", "/", 404, None),
        ("POST", "/v1/systemone/", 404, None),
        ("GET", "/%00%ff", 404, None),
        ("GET", "/nowhere/at-all", 404, None),
        ("POST", "/v1//systemone", 404, None),
    ],
)
def test_other_routes(client: Client, method: str, path: str, status: int, allow: str | None) -> None:
    found, headers, body = client.send(method, path)
    detail = json.loads(body)["detail"]
    assert found == status and headers.get("allow") == allow and set(detail) == {"error_type", "message"}
    assert path == "/" or path not in detail["message"]


@pytest.mark.parametrize("bad", [{"type": "choice"}, {"type": "score", "criteria": []}, "x"])
def test_a_bad_question_beside_a_good_one_leaves_the_next_request_alone(client: Client, bad: Any) -> None:
    status, refused = client.post(ask(good=NOUL, worse=bad))
    assert status in (400, 422) and "worse" in json.dumps(refused)
    assert client.post(BASE)[0] == 200


@pytest.mark.parametrize("model", ["tiny", "demo"])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 21, 64, 77, 255])
def test_choices_of_every_size_are_told_apart(client: Client, model: str, count: int) -> None:
    names = {f"the very same beginning of option {i}": f"also the same {i}" for i in range(count)}
    status, found = client.post(
        ask(q={"type": "choice", "instructions": "?", "criteria": names}) | {"model": model}
    )
    assert status == 200, found
    answer = found["answers"]["q"]
    assert list(answer["probabilities"]) == list(names)
    assert abs(sum(answer["probabilities"].values()) - 1) < 1e-6
    assert answer["choice"] == max(answer["probabilities"], key=answer["probabilities"].__getitem__)
    assert 0 <= answer["confidence"] <= 1
    assert "x_indistinguishable_options" not in found["usage"]
    if count == 255:
        assert found["usage"]["x_option_parts"]["q"] > 1
    if count == 1:
        assert answer["probabilities"] == dict.fromkeys(names, 1.0) and answer["confidence"] == 1.0


def test_options_that_are_the_same_to_the_model_are_told(client: Client) -> None:
    same = "word " * 100
    levels = {"type": "score", "instructions": "?", "criteria": [same] * 10}
    choice = {
        "type": "choice",
        "instructions": "?",
        "criteria": {same + "a": None, same + "b": None, "c": None},
    }
    status, found = client.post(ask(q=levels, c=choice))
    assert status == 200
    assert found["usage"]["x_indistinguishable_options"] == {"c": [[same + "a", same + "b"]]}
    assert found["usage"]["x_shortened_options"]["q"] == [str(i) for i in range(10)]


def test_what_the_model_did_not_see_is_told(client: Client) -> None:
    long = {"type": "noul", "instructions": "Is it late? " * 200}
    status, found = client.post({"state": STATE * 100, "questions": {"a": NOUL, "b": long}})
    usage = found["usage"]
    assert status == 200 and usage["x_state_tokens_dropped"] > 0
    assert usage["x_truncated_questions"] == ["a", "b"] and list(usage["x_instruction_tokens_dropped"]) == [
        "b"
    ]


@pytest.mark.parametrize("token", ["[MASK]", "[SEP]", "[CLS]", "[PAD]", "</s>", "<mask>"])
def test_special_tokens_are_plain_text(client: Client, token: str) -> None:
    question = {"type": "choice", "instructions": f"a {token}", "criteria": {token: f"{token} x", "b": token}}
    status, found = client.post({"state": f"{token} {token}", "questions": {token: question}})
    assert status == 200 and list(found["answers"][token]["probabilities"]) == [token, "b"]


@pytest.mark.parametrize("body", [json.dumps(BASE).encode(), json.dumps(BASE | {"pad": "x" * 5000}).encode()])
def test_content_codings(client: Client, body: bytes) -> None:
    plain = client.post(body)
    packed = zstandard.compress(body)
    assert client.post(gzip.compress(body), Content_Encoding="gzip") == plain
    assert client.post(gzip.compress(body[:9]) + gzip.compress(body[9:]), Content_Encoding="gzip") == plain
    assert client.post(packed, Content_Encoding="zstd") == plain
    assert client.post(gzip.compress(packed), Content_Encoding="zstd, gzip") == plain
    assert client.post(body, Content_Encoding="identity") == plain


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [
        (gzip.compress(b" " * (5 << 20), mtime=0), "gzip", 413),
        (zstandard.compress(b" " * (5 << 20)), "zstd", 413),
        (gzip.compress(b"{}", mtime=0)[:-6], "gzip", 400),
        (b"not gzip", "gzip", 400),
        (b"not zstd", "zstd", 400),
        (b"{}", "br", 415),
    ],
)
def test_bad_codings(client: Client, body: bytes, coding: str, status: int) -> None:
    found, answer = client.post(body, Content_Encoding=coding)
    assert found == status and answer["detail"]["message"]


def test_media_that_a_text_worker_does_not_read(client: Client) -> None:
    status, refused = client.post(b"--x\r\n", Content_Type="multipart/form-data; boundary=x")
    assert status == 415 and "text only" in refused["detail"]["message"]
    status, refused = client.post(BASE | {"assets": {"a": {"url": "x"}}})
    assert status == 400 and "text only" in refused["detail"]["message"]
    status, refused = client.post(ask(q={"type": "box", "instructions": "?"}))
    assert status == 422 and "text only" in refused["detail"][0]["msg"]


def test_a_body_over_the_limit(client: Client) -> None:
    status, refused = client.post(b"x" * ((4 << 20) + 1))
    assert status == 413 and refused["detail"]["error_type"] == "request_too_large"
    assert client.post(BASE)[0] == 200


HEAD = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
BATCH = b"POST /v1/systemone/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def test_a_stalled_body_is_408_and_frees_its_slot(jev: Program, client: Client) -> None:
    with ExitStack() as open_:
        stalled = [open_.enter_context(Caller(jev.url)).send(HEAD % 100 + b"{") for _ in range(8)]
        wait_until(lambda: client.post(BASE)[0] == 503, what="every slot being taken")
        status, headers, _ = client.send("POST", "/v1/systemone", json.dumps(BASE).encode())
        assert status == 503 and headers["retry-after"] == "1"
        assert client.get("/health")[0] == 200
        assert {caller.until(b"\r\n") for caller in stalled} == {b"HTTP/1.1 408 REQUEST TIMEOUT\r\n"}
    wait_until(lambda: client.post(BASE)[0] == 200, what="the slots being free")


def test_a_dripping_body_is_late_too(jev: Program) -> None:
    done = threading.Event()
    with Caller(jev.url).send(HEAD % 1000) as caller:

        def drip() -> None:
            while not done.wait(0.2):
                try:
                    caller.send(b" ")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert caller.reply().status == 408
        finally:
            done.set()
            thread.join()


CHUNKED = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD % 100,
        HEAD % 100 + b"{}",
        CHUNKED,
        CHUNKED + b"5\r\n{}",
        CHUNKED + b"2\r\n{}\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\n",
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_a_body_cut_short_is_never_taken_as_whole(jev: Program, sent: bytes) -> None:
    with Caller(jev.url).send(sent) as caller:
        caller.half_close()
        reply = caller.reply()
        assert (reply.status, reply.error_type) == (400, "invalid_request")
        assert "The request body was cut short" in reply.json()["detail"]["message"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /health HTTP/9\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nbad field\r\n\r\n", 400),
        (b"POST /v1/systemone HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"a" * 9000, 414),
        (b"GET /health HTTP/1.1\r\nx: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 140_000, 431),
        (b"GET /health HTTP/1.1\r\nExpect: 200-ok\r\n\r\n", 417),
    ],
)
def test_what_is_no_request_is_refused_in_json(
    jev: Program, client: Client, sent: bytes, status: int
) -> None:
    before = metric(client, "laya_requests_total", f'{{route="other",status="{status}"}}')
    with Caller(jev.url).send(sent) as caller:
        reply = caller.reply()
        assert (reply.status, reply.whole, reply.value("content-type")) == (status, True, "application/json")
        assert reply.error_type == "invalid_request"
        assert caller.at_end()
    assert metric(client, "laya_requests_total", f'{{route="other",status="{status}"}}') == before + 1


def test_a_malformed_request_is_logged_with_its_clients_id(jev: Program) -> None:
    sent = b"PUT /v1/systemone?key=secret HTTP/1.1\r\nX-Request-Id: mal-formed-1\r\nbad field\r\n\r\n"
    with Caller(jev.url).send(sent) as caller:
        reply = caller.reply()
    assert reply.value("x-request-id") == reply.value("x-typesafe-request-id") == "mal-formed-1"

    def logged() -> list[str]:
        return [line for line in jev.lines() if "mal-formed-1" in line]

    wait_until(lambda: bool(logged()), what="the line of the refused request")
    (line,) = map(json.loads, logged())
    assert (line["method"], line["path"], line["status"], line["bytes"]) == (
        "PUT", "/v1/systemone", 400, len(reply.body),
    )  # fmt: skip


def metric(client: Client, name: str, label: str = "") -> float:
    """The sum of a metric's values over the lines that have `label`."""
    lines = client.send("GET", "/metrics")[2].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)


def gone(client: Client) -> float:
    """How many clients have left before their answer, once both counts of them say so; -1 before that."""
    left = metric(client, "laya_clients_gone_total")
    return left if left == metric(client, "laya_requests_total", 'status="499"') else -1


def test_a_client_that_leaves_is_not_worked_for(jev: Program, client: Client) -> None:
    before = gone(client)
    states = [f"{i} left. {STATE} " * 50 for i in range(400)]
    batch = json.dumps({"states": states, "questions": {"q": NOUL}, "stream": True}).encode()
    with Caller(jev.url).send(BATCH % len(batch) + batch) as caller:
        assert caller.head().status == 200
    wait_until(lambda: gone(client) == before + 1, 60, "the worker seeing that it is alone")


def test_a_client_that_left_gets_nothing_and_499_is_for_the_log(jev: Program, client: Client) -> None:
    """It has shut its writing side after a whole request, so it can still see whether anything is sent."""
    before = gone(client)
    states = [f"{STATE} {i} and gone " * 30 for i in range(400)]
    sent = json.dumps({"states": states, "questions": {"q": NOUL}}).encode()
    with Caller(jev.url).send(BATCH % len(sent) + sent) as caller:
        caller.half_close()
        assert caller.rest() == b""
    wait_until(lambda: gone(client) == before + 1, what="the client being counted")


def test_a_stream_that_is_given_up_does_not_end_as_if_whole(jev: Program, client: Client) -> None:
    before = gone(client)
    states = [f"{STATE} {i} " * 30 for i in range(400)]
    sent = json.dumps({"states": states, "questions": {"q": NOUL}, "stream": True}).encode()
    with Caller(jev.url).send(BATCH % len(sent) + sent) as caller:
        assert caller.head().status == 200
        # To the worker this is a client that has gone, and yet one that can see how its answer ends.
        caller.half_close()
        rest = caller.rest()
    assert not rest.endswith(b"0\r\n\r\n") and b"summary" not in rest
    wait_until(lambda: gone(client) == before + 1, what="the client being counted")


@pytest.mark.parametrize("stream", [True, False])
def test_a_batch_is_measured_state_by_state_and_logged_at_its_end(
    jev: Program, client: Client, stream: bool
) -> None:
    def measured() -> dict[str, float]:
        stages = [f'laya_stage_seconds_count{{stage="{name}"}}' for name in ("queue", "tokenize", "forward")]
        rows = ("laya_decision_rows_count", "laya_decision_rows_sum")
        return {name: metric(client, name) for name in (*stages, *rows, "laya_input_tokens_total")}

    before = measured()
    states = [f"{STATE} {stream} {i}" for i in range(40)] + [None]
    sent = json.dumps({"states": states, "questions": {"q": NOUL}, "stream": stream}).encode()
    id = f"measured-{stream}"
    status, _, found = client.send("POST", "/v1/systemone/batch", sent, {"X-Request-Id": id})
    assert status == 200
    last = json.loads(found.splitlines()[-1])
    tokens = (last["summary"] if stream else last["x_summary"])["usage"]["input_tokens"]
    gained = {name: value - before[name] for name, value in measured().items()}
    assert gained.pop("laya_input_tokens_total") == tokens
    assert set(gained.values()) == {40}

    def logged() -> list[str]:
        return [text for text in jev.lines() if text.startswith("{") and id in text]

    wait_until(lambda: bool(logged()), what="the request's line in the log")
    (line,) = map(json.loads, logged())
    assert line["status"] == 200 and line["bytes"] == len(found)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(DOCUMENT | st.binary(max_size=40))
def test_any_body_gets_200_or_a_4xx_in_shape(client: Client, found: Any) -> None:
    body = found if isinstance(found, bytes) else json.dumps(found).encode()
    for path in ("/v1/systemone", "/v1/systemone/batch"):
        status, answer = client.post(body, path)
        assert status in (200, 400, 413, 415, 422)
        if status == 422:
            assert all(set(error) == {"loc", "msg", "type"} for error in answer["detail"])
        elif status == 400:
            detail = answer["detail"]
            assert isinstance(detail, str) or set(detail) == {"error_type", "message"}


def test_a_batch_gives_each_state_its_own_result(client: Client) -> None:
    states = [STATE, None, ["a", "b"], 3, {"x": STATE}, ""]
    status, found = client.post(
        {"states": states, "questions": {"q": NOUL, "c": CHOICE}}, "/v1/systemone/batch"
    )
    assert status == 200 and len(found["results"]) == len(states)
    for state, result in zip(states, found["results"], strict=True):
        if state is None or state == 3:
            assert result["error"]["status"] == 422 and result["error"]["detail"][0]["loc"][:2] == [
                "body",
                "states",
            ]
        else:
            alone = client.post({"state": state, "questions": {"q": NOUL, "c": CHOICE}})[1]
            assert result["answers"]["c"]["choice"] == alone["answers"]["c"]["choice"]
            assert result["answers"]["q"]["noul"] == pytest.approx(alone["answers"]["q"]["noul"], abs=1e-5)
            assert result["usage"] == alone["usage"]
    assert (found["x_summary"]["decided"], found["x_summary"]["failed"]) == (4, 2)


@pytest.mark.parametrize(
    ("stream", "accept"), [(True, "*/*"), ("true", "*/*"), (None, "application/x-ndjson")]
)
def test_a_stream_has_a_line_for_each_state_and_a_summary(client: Client, stream: Any, accept: str) -> None:
    states = [STATE, None, *["x"] * 30]
    body = json.dumps({"states": states, "questions": {"q": NOUL}, "stream": stream}).encode()
    status, headers, found = client.send("POST", "/v1/systemone/batch", body, {"Accept": accept})
    assert status == 200 and headers["content-type"].startswith("application/x-ndjson")
    *lines, last = [json.loads(line) for line in found.splitlines()]
    assert [line["index"] for line in lines] == list(range(len(states)))
    assert lines[1]["error"]["status"] == 422
    assert last["summary"]["states"] == len(states) and last["summary"]["failed"] == 1
