"""`/openapi.json`: the requests and responses of every path, from the schemas that check requests
and the types that responses are built from. `documented` states them at each route; without it no
server starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from flask import Flask, Response
from pydantic import MISSING, BaseModel, ConfigDict, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from api.http.errors import Error
from api.http.hooks import is_open
from web.browsers import READS

Json = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Response])

PATH = "/openapi.json"
COMPONENTS = "#/components/schemas/{model}"

# statuses of refusals that many routes share
BODY = (408, 413, 415)  # of any body
BUSY = (429, 503, 504)
GENERATING = (400, *BODY, *BUSY)
STORED = (400, 503)  # of the job store


class Answer(BaseModel):
    """A response, or a part of one: with all of its fields but those that are MISSING."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> Json:
        reference = handler(schema)
        own = handler.resolve_ref_schema(reference)
        for one in own["properties"].values():
            one.pop("default", None)
        fields = cls.model_fields.items()
        own["required"] = [name for name, one in fields if one.default is not MISSING]
        return reference


def respond(answer: Answer) -> Response:
    return Response(answer.model_dump_json(ensure_ascii=True), mimetype="application/json")


@dataclass(frozen=True, slots=True)
class Operation:
    """`whole`: the type of a response; `events`: of each event's data in a stream; `media`: the
    media type of a response that is not JSON. `statuses`: of refusals, whose type is `error`."""

    error: Any
    statuses: tuple[int, ...]
    whole: Any = None
    events: Any = None
    last: str | None = None  # data of a stream's last event that is no JSON
    media: str | None = None
    body: Any = None
    form: Json | None = None  # a multipart body
    query: Mapping[str, Json] = field(default_factory=dict)


Operations = Mapping[tuple[str, str], Operation]  # by method and path


def documented(error: Any, *statuses: int, **parts: Any) -> Callable[[Handler], Handler]:
    """Says of the route below what `/openapi.json` says of it; the fields are Operation's."""

    def keep(handler: Handler) -> Handler:
        vars(handler)["operation"] = Operation(error, statuses, **parts)
        return handler

    return keep


plain_errors = partial(documented, Error, 500)


def limit(most: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most}


def operations_of(app: Flask) -> Operations:
    """Raises LookupError for a route without `documented`."""
    found = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        operation = getattr(app.view_functions[rule.endpoint], "operation", None)
        if operation is None:
            raise LookupError(f"{path} has no `documented` of api.openapi")
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            found[method, path] = operation
    return found


def register_openapi(app: Flask, *, keys: bool) -> None:
    """Call it after all other routes are registered. `keys`: whether clients must send one."""
    operations = app.extensions["operations"] = operations_of(app)
    forms = {
        repr(form): form
        for operation in operations.values()
        for form in (operation.body, operation.whole, operation.events, operation.error)
        if form is not None
    }
    schemas, definitions = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(form)) for name, form in forms.items()],
        ref_template=COMPONENTS,
        schema_generator=_Closed,
    )
    paths: dict[str, Json] = {}
    for (method, path), operation in operations.items():
        locked = keys and not is_open(path)
        refusals = ([401] if locked else []) + ([403] if not keys or method not in READS else [])
        described = _described(operation, lambda form: schemas[repr(form), "validation"], refusals)
        described["parameters"][:0] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in sorted(re.findall(r"{(\w+)}", path))
        ]
        if not locked:
            described["security"] = []
        paths.setdefault(path, {})[method.lower()] = described
    document = {
        "openapi": "3.1.0",
        "info": {"title": "effective-batching", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
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


def _described(
    operation: Operation, schema: Callable[[Any], Json], refusals: Iterable[int]
) -> Json:
    answer: Json = {}
    if operation.whole is not None:
        answer["application/json"] = {"schema": schema(operation.whole)}
    if operation.events is not None:
        data: Json = {"type": "string", "contentMediaType": "application/json"}
        data["contentSchema"] = schema(operation.events)
        if operation.last is not None:
            data = {"anyOf": [data, {"const": operation.last}]}
        event: Json = {"type": "object", "description": "of each server-sent event"}
        event |= {"properties": {"data": data}, "required": ["data"]}
        answer["text/event-stream"] = {"schema": event}
    if operation.media is not None:
        answer[operation.media] = {"schema": {"type": "string"}}
    responses = {"200": {"description": "OK", "content": answer}}
    error = {"application/json": {"schema": schema(operation.error)}}
    for status in sorted({*operation.statuses, *refusals}):
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": error}
    query = operation.query.items()
    described: Json = {
        "parameters": [{"name": name, "in": "query", "schema": form} for name, form in query],
        "responses": responses,
    }
    if operation.body is not None:
        content = {"application/json": {"schema": schema(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.form is not None:
        content = {"multipart/form-data": {"schema": operation.form}}
        described["requestBody"] = {"required": True, "content": content}
    return described
