"""The OpenAPI document: valid, complete, and true of what is accepted and refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from flask.testing import FlaskClient
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import OPERATIONS


def test_it_is_a_valid_document(client: FlaskClient) -> None:
    validate(client.get("/openapi.json").get_json())


HEADERS = {"Authorization": "Bearer one"}
UNASKED = {
    ("POST", "/v1/files"),  # multipart bodies have tests of their own
    ("GET", "/watch"),  # a file, which the client leaves open
    ("GET", "/watch/events"),  # without an end
    ("POST", "/watch/play"),  # takes as long as its body says
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = str(tmp_path_factory.mktemp("asked"))
    limits: Any = {"max_total_tokens": 64, "max_body_bytes": 65536}
    with serving(Config("dynamic", api_key="one", data_dir=folder, **limits)) as client:
        yield client


@pytest.fixture(scope="module")
def promised(asked: FlaskClient) -> Any:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", asked.application, headers=HEADERS)
    rejection = schema.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413"]  # a long wrong body
    return schema


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (*key, mode)
        for key, operation in OPERATIONS.items()
        for mode in GenerationMode
        # unknown parameters of an address are ignored, as everywhere
        if key not in UNASKED and (operation.body or mode is GenerationMode.POSITIVE)
    ],
)
def test_every_operation_is_what_the_document_says(
    promised: Any, method: str, path: str, mode: GenerationMode
) -> None:
    @given(case=promised[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=settings().max_examples // 2,
        database=None,
        phases=[Phase.generate],  # a failure names its example; to shrink it takes long
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any) -> None:
        case.call_and_validate(headers=HEADERS, checks=CHECKS)

    holds()
