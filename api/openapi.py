"""`/openapi.json`: every path that the server has, from its routes, and what each takes, from the
schemas that its requests are read with. Knows no dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flask import Flask, Response, jsonify
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.keys import OPEN_PATHS

PATH = "/openapi.json"
COMPONENTS = "#/components/schemas/{model}"
ANSWERS = "200: see docs/apis.md; any other: an error in the shape of the API whose path it is"


def register_openapi(app: Flask, bodies: Mapping[str, type[BaseModel]], *, keys: bool) -> None:
    """To be called when all other routes are there. `bodies`: what a POST to a path takes;
    `keys`: whether one has to be sent."""
    names, definitions = models_json_schema(
        [(schema, "validation") for schema in dict.fromkeys(bodies.values())],
        ref_template=COMPONENTS,
    )
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            schema = bodies.get(rule.rule) if method == "POST" else None
            body = None if schema is None else names[(schema, "validation")]
            operation = _operation(sorted(rule.arguments), body)
            if path in OPEN_PATHS:
                operation["security"] = []
            paths.setdefault(path, {})[method.lower()] = operation
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

    @app.get(PATH)
    def openapi() -> Response:
        return jsonify(document)


def _operation(arguments: list[str], body: Mapping[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in arguments
        ],
        "responses": {"default": {"description": ANSWERS}},
    }
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
