"""`/openapi.json`: the requests and responses of every path, from the schemas that check requests
and the types that responses are built from. A route that is missing in `paths.py` keeps the server
from starting."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from flask import Flask, Response
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from api.document.paths import OPERATIONS, Json, Operation
from api.http.hooks import is_open
from web.browsers import READS

PATH = "/openapi.json"
COMPONENTS = "#/components/schemas/{model}"

References = Callable[[Any], Json]  # a type -> the schema that stands for it


def register_openapi(app: Flask, *, keys: bool) -> None:
    """Call it after all other routes are registered. `keys`: whether clients must send one."""
    references, components = _schemas()
    paths: dict[str, Json] = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            locked = keys and not is_open(path)
            refusals = [401] if locked else []
            if not keys or method not in READS:
                refusals.append(403)
            operation = OPERATIONS.get((method, path))
            if operation is None:
                raise LookupError(f"{method} {path} has no row in OPERATIONS of api.document.paths")
            told = _operation(operation, sorted(rule.arguments), references, refusals)
            if not locked:
                told["security"] = []
            paths.setdefault(path, {})[method.lower()] = told
    document = {
        "openapi": "3.1.0",
        "info": {"title": "effective-batching", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}] if keys else [],
    }

    text = app.json.dumps(document)  # once: it takes 10 ms, which any client could ask for

    @app.get(PATH)
    def openapi() -> Response:
        return Response(text, mimetype="application/json")


class _Closed(GenerateJsonSchema):
    """All keys of a response's type are known."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Json:
        return {**super().typed_dict_schema(schema), "additionalProperties": False}


def _schemas() -> tuple[References, Json]:
    """For each type the schema that refers to it, and the schemas that these refer to."""
    forms = {
        repr(form): form
        for operation in OPERATIONS.values()
        for form in (operation.body, operation.whole, operation.events, operation.error)
        if form is not None
    }
    schemas, definitions = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(form)) for name, form in forms.items()],
        ref_template=COMPONENTS,
        schema_generator=_Closed,
    )
    return (lambda form: schemas[repr(form), "validation"]), definitions["$defs"]


def _operation(
    operation: Operation,
    arguments: list[str],
    references: References,
    refusals: list[int],
) -> Json:
    answer: dict[str, Any] = {}
    if operation.whole is not None:
        answer["application/json"] = {"schema": references(operation.whole)}
    if operation.events is not None:
        data: Json = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": references(operation.events),
        }
        if operation.last is not None:
            data = {"anyOf": [data, {"const": operation.last}]}
        answer["text/event-stream"] = {
            "schema": {
                "type": "object",
                "description": "of each server-sent event",
                "properties": {"data": data},
                "required": ["data"],
            }
        }
    if operation.media is not None:
        answer[operation.media] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": references(operation.error)}}
    statuses = {*operation.statuses, *refusals}
    told: Json = {
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in arguments
            ),
            *(
                {"name": name, "in": "query", "schema": schema}
                for name, schema in operation.query.items()
            ),
        ],
        "responses": {
            "200": {"description": "OK", "content": answer},
            **{
                str(status): {"description": HTTPStatus(status).phrase, "content": error}
                for status in sorted(statuses)
            },
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": references(operation.body)}}
        told["requestBody"] = {"required": True, "content": content}
    if operation.form is not None:
        content = {"multipart/form-data": {"schema": operation.form}}
        told["requestBody"] = {"required": True, "content": content}
    return told
