"""A deployment as the decider: which answers are a record's fault, which the deployment's, and what is sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.files.deployment import ANSWERS, Reply, decided, deployment
from worker.files.answered import Result, failure
from worker.files.deciders import FAILURES, Interrupted, Remote, Stopped, Task
from worker.files.records import Record
from worker.remote import Deployment, DeploymentRefused

QUESTIONS = {"questions": {"q": {"type": "noul", "instructions": "Is it?"}}}


def tasks(count: int) -> Iterator[Task]:
    return (Task(Record("in", i, str(i)), str(i)) for i in range(count))


def results(
    url: str, given: Iterator[Task], callers: int = 4, **more: Any
) -> Iterator[tuple[Record, Result]]:
    remote = Deployment(url, more.pop("key", None), pause=more.pop("pause", lambda seconds: None))
    return Remote(remote, QUESTIONS, callers, more.pop("alive", lambda: True)).results(given)


def test_results_come_in_the_records_order_each_asked_once() -> None:
    with deployment() as server:
        found = list(results(server.url, tasks(50)))
        assert [record.line for record, _ in found] == list(range(50))
        assert all(result["answers"] == ANSWERS for _, result in found)
        assert set(server.asked.values()) == {1} and len(server.asked) == 50
        assert server.backend.connections <= 4


def test_a_request_is_sent_again_when_the_answer_says_when() -> None:
    pauses: list[float] = []
    left = {"1": 2}

    def replies(document: dict[str, Any]) -> Reply:
        if left.get(document["state"], 0):
            left[document["state"]] -= 1
            return 503, {"Retry-After": "3"}, {"detail": {"error_type": "overloaded", "message": "busy"}}
        return decided(document)

    with deployment(replies) as server:
        found = list(results(server.url, tasks(3), pause=pauses.append))
        assert all("answers" in result for _, result in found)
        assert server.asked == {'"0"': 1, '"1"': 3, '"2"': 1}
    assert pauses == [3.0, 3.0]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_one_failure_of_the_deployment_is_one_error_record_and_is_not_sent_again(status: int) -> None:
    def replies(document: dict[str, Any]) -> Reply:
        return (status, {}, {"detail": "no"}) if document["state"] == "1" else decided(document)

    with deployment(replies) as server:
        found = [result for _, result in results(server.url, tasks(4))]
        assert found[1] == failure({"message": f"The deployment failed: it answered {status}."}, status)
        assert [("answers" in result) for result in found] == [True, False, True, True]
        assert server.asked['"1"'] == 1


def test_a_deployment_that_keeps_failing_stops_the_job_and_those_records_stay_undecided() -> None:
    def replies(document: dict[str, Any]) -> Reply:
        return decided(document) if int(document["state"]) < 5 else (502, {}, None)

    found = []
    with deployment(replies) as server, pytest.raises(Stopped, match=f"{FAILURES} times in a row"):
        for record, _ in results(server.url, tasks(100)):
            found.append(record.line)
    assert found == [0, 1, 2, 3, 4]


def test_bad_records_do_not_hide_that_the_deployment_is_down() -> None:
    bad = failure({"message": "bad"}, 422)
    given = (
        Task(Record("in", i, None), refused=bad) if i % 2 else Task(Record("in", i, "s"), "s")
        for i in range(100)
    )
    with deployment(lambda document: (502, {}, None)) as server, pytest.raises(Stopped):
        assert not list(results(server.url, given))


def test_a_deployment_that_is_not_there_stops_the_job() -> None:
    with deployment() as server:
        url = server.url
    with pytest.raises(Stopped, match="ConnectionError"):
        list(results(url, tasks(100)))


def test_a_refused_request_is_the_records_own_error() -> None:
    detail = [{"loc": ["body", "state"], "msg": "too long", "type": "x"}]
    with deployment(lambda document: (422, {}, {"detail": detail})) as server:
        ((_, result),) = results(server.url, tasks(1))
        assert result == failure(detail, 422)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((401, {}, {"detail": "no"}), "the key is wrong"),
        ((403, {}, {"detail": "no"}), "a key is needed"),
        ((404, {}, {"detail": "no"}), "is it a System One deployment"),
        ((301, {"Location": "http://127.0.0.1:1/"}, {}), "is it a System One deployment"),
        ((200, {}, {"choices": []}), "does not answer as"),
    ],
)
def test_an_answer_that_every_record_would_get_refuses_the_job(reply: Reply, words: str) -> None:
    with deployment(lambda document: reply) as server, pytest.raises(DeploymentRefused, match=words):
        list(results(server.url, tasks(3)))


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1/", "http://"])
def test_what_is_no_url_refuses_the_job(url: str) -> None:
    with pytest.raises(DeploymentRefused, match="no http"):
        list(results(url, tasks(1)))


def test_the_key_is_sent_and_a_stop_ends_the_job() -> None:
    going = iter([True, True, False])
    with deployment() as server:
        found = results(server.url, tasks(9), key="secret", callers=1, alive=lambda: next(going))
        assert len([next(found), next(found)]) == 2
        with pytest.raises(Interrupted):
            next(found)
        assert all(b"Authorization: Bearer secret" in seen.head for seen in server.backend.seen)
