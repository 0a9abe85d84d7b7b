"""The dashboard, the alerts and the autoscaler: PromQL over what a server and a router give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving.config import Config
from tests.api.conftest import serving
from tests.router.conftest import Net
from tests.router.test_deploy import DEPLOY, KUBERNETES
from tests.support.dialects import TGI, ask
from tests.support.process import eventually

PRODUCTION = KUBERNETES / "production"
SELECTOR = re.compile(r"((?:eb_|tgi_|vllm:)\w+)(?:{([^}]*)})?")
Series = dict[str, list[dict[str, str]]]
GIVEN_LATER = {"eb_batch_next_deadline_timestamp_seconds"}  # while a batch is in progress


def of_file(name: str) -> Any:
    return yaml.safe_load((PRODUCTION / name).read_text())["spec"]


def expressions() -> Iterator[str]:
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m")
    (group,) = of_file("alerts.yaml")["groups"]
    yield from (rule["expr"] for rule in group["rules"])
    (trigger,) = of_file("scaled-object.yaml")["triggers"]
    yield trigger["metadata"]["query"]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """The labels of each metric's series."""
    found: Series = {}
    folder = tmp_path_factory.mktemp("jobs")
    with serving(Config(mode="dynamic", data_dir=str(folder))) as server:
        assert ask(server, TGI, "abc", 4).status_code == 200
        assert server.get("/v1/batches").status_code == 200
        eventually(lambda: b"eb_batch_lines" in server.get("/metrics").data, "figures of the store")
        texts = [server.get("/metrics").get_data(as_text=True)]
    with Net() as net:
        texts.append(net.router(net.upstream("embedded")).get("/metrics").text)
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("expression", list(expressions()))
def test_a_query_selects_series_that_are_given(series: Series, expression: str) -> None:
    promql_parser.parse(expression)
    for name, matchers in SELECTOR.findall(expression):
        # the parser of the exposition format calls every counter `..._total`
        given = series.get(name) or series.get(f"{name}_total", [])
        wanted = set(re.findall(r'(\w+)="([^"]*)"', matchers))
        assert name in GIVEN_LATER or any(wanted <= labels.items() for labels in given), name
