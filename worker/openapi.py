"""The OpenAPI document of the worker's HTTP surface.

It knows shapes and statuses, and must not know how anything is done. A test holds it against the running worker.
"""

from typing import Any

from worker import protocol
from worker.settings import Settings

Schema = dict[str, Any]

TEXT: Schema = {"type": ["string", "object", "array"]}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
STRING: Schema = {"type": "string"}
STRINGS: Schema = {"type": "array", "items": STRING}
KEYLESS: Schema = {"security": []}


def describe(settings: Settings) -> dict[str, Any]:
    """OpenAPI 3.1, true under these settings."""
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Laya worker",
            "version": "1",
            "description": "Typed decisions about text: the System One contract"
            + (", in laya-serve's wire." if settings.wire == "laya" else "."),
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(settings), "responses": _responses(settings)},
    }
    if settings.api_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _paths() -> dict[str, Any]:
    refused = ("400", "408", "413", "415", "422", "500", "503")
    return {
        "/v1/systemone": {"post": _operation("Decide", "Request", {"application/json": "Answer"}, refused)},
        "/v1/systemone/batch": {
            "post": _operation(
                "Decide about many states",
                "Batch",
                {"application/json": "Results", "application/x-ndjson": "Line"},
                refused,
            )
        },
        "/v1/models": {"get": _operation("List the models", None, {"application/json": "Models"}, ("503",))},
        "/health": {
            "get": KEYLESS
            | {
                "summary": "Whether decisions can be made",
                "responses": {
                    "200": _success("They can", {"application/json": "Health"}),
                    "503": _success("Loading, or the device failed", {"application/json": "Health"}),
                },
            }
        },
        "/metrics": {"get": _operation("Prometheus metrics", None, {"text/plain": None}, ())},
        "/openapi.json": {
            "get": KEYLESS
            | {
                "summary": "This document",
                "responses": {"200": _success("Success", {"application/json": None})},
            }
        },
    }


def _success(description: str, given: dict[str, str | None]) -> Schema:
    content = {media: {"schema": _ref(schema) if schema else {}} for media, schema in given.items()}
    return {"description": description, "content": content}


def _operation(
    summary: str, body: str | None, given: dict[str, str | None], refused: tuple[str, ...]
) -> Schema:
    responses: Schema = {"200": _success("Success", given)}
    responses |= {
        status: {"$ref": f"#/components/responses/Refused{status}"} for status in (*refused, "401", "403")
    }
    operation: Schema = {"summary": summary, "responses": responses}
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return operation


def _responses(settings: Settings) -> dict[str, Any]:
    counts = {settings.limit_status: ", or a count is out of range"}
    meanings = {
        "400": ("an unknown model, or more tokens than the model takes" + counts.get(400, ""), "Error"),
        "401": ("the key is wrong", "Error"),
        "403": ("no usable key was sent", "Error"),
        "408": ("the body did not arrive in time", "Error"),
        "413": ("the body is too large", "Error"),
        "415": ("a coding or a medium that is not read", "Error"),
        "422": ("fields are missing or mistyped" + counts.get(422, ""), "FieldErrors"),
        "500": ("a fault of the worker", "Error"),
        "503": ("overloaded, loading, or the device failed", "Error"),
    }
    return {
        f"Refused{status}": {
            "description": meaning,
            "content": {"application/json": {"schema": _ref(schema)}},
        }
        for status, (meaning, schema) in meanings.items()
    }


def _schemas(settings: Settings) -> dict[str, Schema]:
    laya = settings.wire == "laya"
    levels = protocol.MAX_LEVELS_LAYA if laya else protocol.MAX_LEVELS
    words = {"type": [*TEXT["type"], "number", "boolean"]} if laya else TEXT
    words_or_null = {"type": [*words["type"], "null"]}
    typed = {"instructions": words_or_null}
    names: Schema = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": protocol.MAX_CHOICES,
        "additionalProperties": words_or_null,
    }
    if laya:
        listed = STRINGS | {"minItems": 1, "maxItems": protocol.MAX_CHOICES, "uniqueItems": True}
        names = {"oneOf": [names, listed]}
    questions = {"type": "object", "minProperties": 1, "additionalProperties": _ref("Question")}
    answers = {"type": "object", "additionalProperties": _ref("GivenAnswer")}
    total = {"input_tokens": COUNT, "output_tokens": COUNT}
    result = _object({"model": STRING, "answers": answers, "usage": _ref("Usage")})
    failure = _object({"error": _object({"status": COUNT, "detail": {}})})
    return {
        "Request": _object({"state": TEXT, "questions": questions}, {"model": {"type": ["string", "null"]}}),
        "Batch": _object(
            {"states": {"type": "array", "minItems": 1, "items": TEXT}, "questions": questions},
            {"model": {"type": ["string", "null"]}, "stream": {"type": "boolean"}},
        ),
        "Question": {"oneOf": [_ref("Choice"), _ref("Score"), _ref("Noul")]},
        "Choice": _object(
            {
                "type": {"const": "choice"},
                "criteria": names,
            },
            typed,
        ),
        "Score": _object(
            {
                "type": {"const": "score"},
                "criteria": {"type": "array", "minItems": 1, "maxItems": levels, "items": words},
            },
            typed,
        ),
        "Noul": _object(
            {"type": {"const": "noul"}},
            typed
            | {
                "criteria": {
                    "type": ["object", "null"],
                    "properties": {"true": words_or_null, "false": words_or_null},
                    "additionalProperties": False,
                },
                "labels": _object({"true": STRING, "false": STRING}),
            },
        ),
        "Answer": result,
        "GivenAnswer": _given(laya),
        "Usage": _usage(laya),
        "Results": _object(
            {
                "results": {"type": "array", "items": {"oneOf": [result, failure]}},
                "total_usage": _object(total),
                "x_summary": _ref("Summary"),
            }
        ),
        "Line": {
            "oneOf": [
                _object({"index": COUNT, **result["properties"]}),
                _object({"index": COUNT, **failure["properties"]}),
                _object({"summary": _ref("Summary")}),
            ]
        },
        "Summary": _object({"states": COUNT, "decided": COUNT, "failed": COUNT, "usage": _object(total)}),
        "Models": _object(
            {
                "models": {
                    "type": "array",
                    "items": _object(
                        {"name": STRING, "description": STRING, "release_date": STRING | {"format": "date"}}
                    ),
                }
            }
        ),
        "Health": _object({"status": STRING}, {"wire": STRING, "models": {"type": "array"}}),
        "Error": _object(
            {"detail": {"oneOf": [STRING, _object({"error_type": STRING, "message": STRING})]}},
        ),
        "FieldErrors": _object(
            {
                "detail": {
                    "type": "array",
                    "minItems": 1,
                    "items": _object({"loc": {"type": "array"}, "msg": STRING, "type": STRING}),
                }
            }
        ),
    }


def _given(laya: bool) -> Schema:
    """An answer to a question, in either wire."""
    spread: Schema = {"probabilities": _map(SHARE), "confidence": SHARE}
    if laya:
        noul: Schema = {"confidence": SHARE}
        spread |= {"x_jev_confidence": SHARE}
        all_have: Schema = {"answer_confidence": SHARE, "action": _object({"act_probability": SHARE})}
    else:
        noul = {}
        all_have = {"x_laya_confidence": SHARE, "x_answer_confidence": SHARE, "x_act_probability": SHARE}
    legend = _map(STRING if laya else TEXT)
    score = {"score": {"type": "number", "minimum": 0}, "legend": legend}
    return {
        "oneOf": [
            _object({"type": {"const": "choice"}, "choice": STRING, **spread, **all_have}),
            _object({"type": {"const": "score"}, **score, **spread, **all_have}),
            _object({"type": {"const": "noul"}, "noul": SHARE, **noul, **all_have}),
        ]
    }


def _usage(laya: bool) -> Schema:
    """What a request cost, and by question what of it the model did not see."""
    counts = {"input_tokens": COUNT, "output_tokens": COUNT}
    if laya:
        # Null where the options are the same uncut: nothing shortened them.
        per_option = {"type": ["integer", "null"], "minimum": 0}
        collapsed = _object({"total": COUNT, "distinct": COUNT, "tokens_per_option": per_option})
        seen = {
            "state_tokens": COUNT,
            "state_tokens_dropped": COUNT,
            "truncated": {"type": "boolean"},
            "truncated_questions": STRINGS,
        }
        return _object(counts | seen, {"options": _map(collapsed)})
    return _object(
        counts
        | {"x_state_tokens_used": COUNT, "x_state_tokens_dropped": COUNT, "x_truncated_questions": STRINGS},
        {
            "x_instruction_tokens_dropped": _map(COUNT),
            "x_shortened_options": _map(STRINGS),
            "x_indistinguishable_options": _map({"type": "array", "items": STRINGS}),
            "x_option_parts": _map(COUNT),
        },
    )


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Schema:
    """An object with these fields; others are allowed, as everywhere in the contract."""
    return {"type": "object", "required": list(required), "properties": required | (optional or {})}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
