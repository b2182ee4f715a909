"""The OpenAPI document is true: the running worker is fuzzed by it, and answers in its shapes."""

from __future__ import annotations

import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.servers import Program
from tests.worker.conftest import Client

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


def test_the_worker_keeps_it(jev: Program) -> None:
    schema = schemathesis.openapi.from_url(f"{jev.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()

        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(max_examples=30, deadline=None)
            @given(operation.as_strategy(generation_mode=mode))
            def fuzz(case: schemathesis.Case) -> None:
                case.call_and_validate(base_url=jev.url, checks=CHECKS)

            if mode is GenerationMode.POSITIVE or operation.body:
                fuzz()
