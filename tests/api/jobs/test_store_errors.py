"""What clients learn about an unavailable store, and what only the log says."""

from __future__ import annotations

import pytest

from serving.config import Config
from tests.api.conftest import serving

WHERE = "postgresql://secret-user:secret-password@127.0.0.3:1/secret-database"


def test_an_unavailable_stores_address_is_logged_and_not_shown_to_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(Config(mode="dynamic", database_url=WHERE)) as client:
        answers = [client.get(path) for path in ("/v1/files", "/v1/batches/b", "/stats")]
    assert [answer.status_code for answer in answers] == [503, 503, 200]
    assert answers[0].json is not None
    assert answers[0].json["error"]["code"] == "store_unavailable"
    assert answers[2].json is not None
    assert answers[2].json["jobs"] == {"store": "unavailable"}
    for answer in answers:
        assert "secret-" not in answer.text
        assert "127.0.0.3" not in answer.text
    assert "127.0.0.3" in caplog.text
    assert "secret-password" not in caplog.text
