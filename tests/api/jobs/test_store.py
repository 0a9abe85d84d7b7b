"""When the store of a server's jobs is opened, and what cannot be."""

from __future__ import annotations

from pathlib import Path

from flask.testing import FlaskClient

from serving.config import Config
from tests.api.conftest import serving
from tests.api.jobs.test_files import error_of


def asked(client: FlaskClient) -> int:
    body = {"prompt": "x", "num_tokens": 1}
    return client.post("/inference", json=body).status_code


def test_nothing_is_made_on_disk_before_it_is_needed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(Config(mode="dynamic", data_dir=str(folder))) as client:
        assert asked(client) == 200
        stats = client.get("/stats").json
        assert stats is not None
        assert stats["jobs"] == {"store": "unused"}
        assert not folder.exists()
        assert client.get("/v1/files").status_code == 200
        assert folder.exists()


def test_a_folder_that_cannot_be_read_turns_the_batch_api_off_alone(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 300)  # even root cannot open it
    with serving(Config(mode="dynamic", data_dir=str(too_long))) as client:
        assert asked(client) == 200
        refused = client.get("/v1/files")
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "store_unavailable"
        assert asked(client) == 200
