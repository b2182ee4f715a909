"""The OpenAPI document of the worker's HTTP surface.

It knows shapes and statuses, and must not know how anything is done. A test holds it against the running worker.
"""

from typing import Any

from worker import protocol
from worker.settings import Settings

Schema = dict[str, Any]

TEXT: Schema = {"type": ["string", "object", "array"]}
TEXT_OR_NULL: Schema = {"type": ["string", "object", "array", "null"]}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
STRING: Schema = {"type": "string"}


def describe(settings: Settings) -> dict[str, Any]:
    """OpenAPI 3.1, true under these settings."""
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Laya worker",
            "version": "1",
            "description": "Typed decisions about text: the System One contract.",
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(settings), "responses": _responses()},
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
            "get": {
                **_operation("Whether decisions can be made", None, {"application/json": "Health"}, ()),
                "security": [],
            }
        },
        "/metrics": {"get": _operation("Prometheus metrics", None, {"text/plain": None}, ())},
        "/openapi.json": {
            "get": {**_operation("This document", None, {"application/json": None}, ()), "security": []}
        },
    }


def _operation(
    summary: str, body: str | None, given: dict[str, str | None], refused: tuple[str, ...]
) -> Schema:
    content = {media: {"schema": _ref(schema) if schema else {}} for media, schema in given.items()}
    responses: Schema = {"200": {"description": "Success", "content": content}}
    responses |= {
        status: {"$ref": f"#/components/responses/Refused{status}"} for status in (*refused, "401", "403")
    }
    if given.get("application/json") == "Health":
        responses = {status: {"description": "State", "content": content} for status in ("200", "503")}
    operation: Schema = {"summary": summary, "responses": responses}
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return operation


def _responses() -> dict[str, Any]:
    meanings = {
        "400": ("a limit, an unknown model, or more tokens than the model takes", "Error"),
        "401": ("the key is wrong", "Error"),
        "403": ("no key was sent", "Error"),
        "408": ("the body did not arrive in time", "Error"),
        "413": ("the body is too large", "Error"),
        "415": ("a coding or a medium that is not read", "Error"),
        "422": ("fields are missing or mistyped", "FieldErrors"),
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
    shares = {"type": "object", "additionalProperties": SHARE}
    typed = {"instructions": TEXT_OR_NULL}
    extra: Schema = {"action": {"type": "object"}} if laya else {"x_act_probability": SHARE}
    noul_answer = {"noul": SHARE} | ({"confidence": SHARE} if laya else {})
    spread = {"probabilities": shares, "confidence": SHARE}
    questions = {"type": "object", "minProperties": 1, "additionalProperties": _ref("Question")}
    answers = {"type": "object", "additionalProperties": _ref("GivenAnswer")}
    usage = {"input_tokens": COUNT, "output_tokens": COUNT}
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
                "criteria": {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": protocol.MAX_CHOICES,
                    "additionalProperties": TEXT_OR_NULL,
                },
            },
            typed,
        ),
        "Score": _object(
            {
                "type": {"const": "score"},
                "criteria": {"type": "array", "minItems": 1, "maxItems": levels, "items": TEXT},
            },
            typed,
        ),
        "Noul": _object(
            {"type": {"const": "noul"}},
            typed
            | {
                "criteria": {
                    "type": ["object", "null"],
                    "properties": {"true": TEXT_OR_NULL, "false": TEXT_OR_NULL},
                    "additionalProperties": False,
                },
                "labels": _object({"true": STRING, "false": STRING}),
            },
        ),
        "Answer": result,
        "GivenAnswer": {
            "oneOf": [
                _object({"type": {"const": "choice"}, "choice": STRING, **spread, **extra}),
                _object(
                    {
                        "type": {"const": "score"},
                        "score": {"type": "number", "minimum": 0},
                        "legend": {"type": "object", "additionalProperties": TEXT},
                        **spread,
                        **extra,
                    }
                ),
                _object({"type": {"const": "noul"}, **noul_answer, **extra}),
            ]
        },
        "Usage": _object(usage),
        "Results": _object(
            {
                "results": {"type": "array", "items": {"oneOf": [result, failure]}},
                "total_usage": _object(usage),
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
        "Summary": _object({"states": COUNT, "decided": COUNT, "failed": COUNT, "usage": _object(usage)}),
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


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Schema:
    """An object with these fields; others are allowed, as everywhere in the contract."""
    return {"type": "object", "required": list(required), "properties": required | (optional or {})}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
