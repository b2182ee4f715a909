"""The OpenAPI document is true: the running worker is fuzzed by it, and answers in its shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.client import Client
from tests.servers import Program, start_worker

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_it_is_valid_and_names_every_route(client: Client) -> None:
    status, document = client.get("/openapi.json")
    assert status == 200 and document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {
        "/v1/systemone",
        "/v1/systemone/batch",
        "/v1/models",
        "/health",
        "/metrics",
        "/openapi.json",
    }


@pytest.fixture(scope="module", params=["jev", "laya"])
def either(request: pytest.FixtureRequest) -> Iterator[Program]:
    """A worker in each wire."""
    if request.param == "jev":
        yield request.getfixturevalue("jev")
    else:
        with start_worker(LAYA_WIRE="laya") as program:
            yield program


def described(schemas: dict[str, Any], value: Any, schema: dict[str, Any]) -> None:
    """Every required field is there, and no field is there that the document does not name."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "oneOf" in schema:
        (schema,) = [
            one for one in schema["oneOf"] if one["properties"]["type"]["const"] == value.get("type")
        ]
    if "properties" in schema:
        assert set(schema["required"]) <= set(value) <= set(schema["properties"])
        for name, part in value.items():
            described(schemas, part, schema["properties"][name])
    elif isinstance(schema.get("additionalProperties"), dict):
        for part in value.values():
            described(schemas, part, schema["additionalProperties"])


def test_every_field_of_an_answer_is_described(either: Program) -> None:
    same = {"a " + "long " * 300 + str(i): "x" for i in range(3)}
    asked = {
        "state": "It came late. " * 400,
        "questions": {
            "noul": {"type": "noul", "instructions": "late? " * 400},
            "choice": {"type": "choice", "criteria": {"a": "late", "b": None}},
            "score": {"type": "score", "criteria": ["fine", "bad"]},
            "same": {"type": "choice", "criteria": same},
        },
    }
    client = Client(either.url)
    status, answer = client.post(asked)
    schemas = client.get("/openapi.json")[1]["components"]["schemas"]
    client.close()
    assert status == 200, json.dumps(answer)
    assert len(answer["usage"]) > 6
    described(schemas, answer, schemas["Answer"])


def test_what_needs_no_key_says_so(either: Program) -> None:
    client = Client(either.url)
    paths = client.get("/openapi.json")[1]["paths"]
    client.close()
    open_ = {path for path, methods in paths.items() if methods.get("get", {}).get("security") == []}
    assert open_ == {"/health", "/openapi.json"}
    assert all("401" not in paths[path]["get"]["responses"] for path in open_)
    assert set(paths["/health"]["get"]["responses"]) == {"200", "503"}


def test_the_worker_keeps_it(either: Program) -> None:
    schema = schemathesis.openapi.from_url(f"{either.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()

        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(max_examples=30)
            @given(operation.as_strategy(generation_mode=mode))
            def fuzz(case: schemathesis.Case) -> None:
                case.call_and_validate(base_url=either.url, checks=CHECKS)

            if mode is GenerationMode.POSITIVE or operation.body:
                fuzz()
