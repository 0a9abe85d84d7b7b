"""The deployment files: against the Kubernetes schemas, and against what the programs expect."""

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from launcher.config import LauncherConfig
from model_server.config import ServeConfig
from router.config import RouterConfig, parse_args
from serving.config import Config as ServerConfig
from web.browsers import Rules, host_names

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
BASE, PRODUCTION = "base", "production"
REMOTE_MODEL = f"{PRODUCTION} with remote-model"
TWO_MODELS = f"{PRODUCTION} with two-models"
GPU = f"{PRODUCTION} with gpu"
VARIANTS = [BASE, PRODUCTION, f"{PRODUCTION} with shards", REMOTE_MODEL, TWO_MODELS, GPU]
KUBERNETES_VERSION = "1.37.0"
# Settings of a cluster's own extensions have no schema in Kubernetes.
EXTENSIONS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "Kustomization"}
Object = dict[str, Any]

ROUTER_VARIABLES = {name for option in RouterConfig.declared() for name in option.variables}
SERVER_VARIABLES = {
    name
    for program in (ServerConfig, LauncherConfig, ServeConfig)
    for option in program.declared()
    for name in option.variables
}


def documents() -> list[Object]:
    texts = [path.read_text() for path in sorted(KUBERNETES.rglob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text)]


@functools.cache  # most objects are the same in all variants
def check(text: str) -> None:
    document = json.loads(text)
    if document["kind"] not in EXTENSIONS:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


@functools.cache
def rendered(variant: str) -> list[Object]:
    """What kustomize makes of a folder, with an option of it taken as its first lines say."""
    command = next(
        (c for c in (["kubectl", "kustomize"], ["kustomize", "build"]) if which(c[0])), None
    )
    if command is None:
        pytest.skip("neither kubectl nor kustomize is here: nothing is rendered")
    folder, _, option = variant.partition(" with ")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "kubernetes"
        shutil.copytree(KUBERNETES, copy)
        listed = copy / folder / "kustomization.yaml"
        if option:
            assert f"#{option} " in listed.read_text()
            listed.write_text(listed.read_text().replace(f"#{option} ", ""))
        server = (copy / BASE / "server.yaml").read_text()
        second = re.sub("eb-server$", "second-eb-server", server, flags=re.MULTILINE)
        (copy / PRODUCTION / "second-server.yaml").write_text(second)
        text = subprocess.run(
            [*command, copy / folder], capture_output=True, text=True, check=True
        ).stdout
    return list(yaml.safe_load_all(text))


@pytest.fixture(params=VARIANTS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return rendered(request.param)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def container(deployment: Object) -> Object:
    (own,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(own)


def selects(selector: Object, deployment: Object) -> bool:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", [])
    )


def test_every_variant_renders_to_manifests_that_fit_the_schema(objects: list[Object]) -> None:
    for document in [*objects, *documents()]:
        check(json.dumps(document, sort_keys=True, default=str))
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))


def test_services_budgets_and_network_policies_select_the_pods_of_their_deployments(
    objects: list[Object],
) -> None:
    deployments = of_kind(objects, "Deployment")
    for selecting in of_kind(objects, "Service") + of_kind(objects, "PodDisruptionBudget"):
        selector = selecting["spec"]["selector"]
        selector = selector if "matchLabels" in selector else {"matchLabels": selector}
        chosen = [d for d in deployments if selects(selector, d)]
        assert [d["metadata"]["name"] for d in chosen] == [selecting["metadata"]["name"]]
    callers = {"server": "router", "model-server": "server"}
    for policy in of_kind(objects, "NetworkPolicy"):
        ends = policy["spec"]["podSelector"], policy["spec"]["ingress"][0]["from"][0]["podSelector"]
        to, by = ({container(d)["name"] for d in deployments if selects(s, d)} for s in ends)
        assert by == {callers[name] for name in to}


def test_the_objects_on_the_page_about_deploying_fit_the_schema_too() -> None:
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    blocks = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    shown = [block for block in blocks if isinstance(block, dict) and "kind" in block]
    assert {"Ingress", "HorizontalPodAutoscaler"} <= {block["kind"] for block in shown}
    for block in shown:
        check(json.dumps(block))


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_in_production_servers_require_the_key_that_routers_send(variant: str) -> None:
    key = {"secretKeyRef": {"name": "eb-server-key", "key": "key"}}
    names = {"eb-server": "API_KEY", "eb-router": "UPSTREAM_API_KEY"}
    assert names["eb-server"] in SERVER_VARIABLES
    assert names["eb-router"] in ROUTER_VARIABLES
    for deployment in of_kind(rendered(variant), "Deployment"):
        if (name := deployment["metadata"]["name"].removeprefix("second-")) != "eb-model":
            environment = container(deployment)["env"]
            assert {"name": names[name], "valueFrom": key} in environment
    (monitor,) = of_kind(rendered(variant), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == key["secretKeyRef"]


def test_with_gpus_each_server_has_one_and_a_rollout_needs_no_further_one() -> None:
    deployments = {d["metadata"]["name"]: d for d in of_kind(rendered(GPU), "Deployment")}
    server = deployments["eb-server"]
    assert container(server)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert settings(rendered(GPU), server)["EB_DEVICE"] == "cuda"
    assert server["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert "nvidia.com/gpu" not in container(deployments["eb-router"])["resources"]["limits"]


def settings(objects: list[Object], deployment: Object) -> dict[str, str]:
    """The ConfigMap of its container."""
    named = container(deployment)["envFrom"][0]["configMapRef"]["name"]
    (data,) = [m["data"] for m in of_kind(objects, "ConfigMap") if m["metadata"]["name"] == named]
    return data  # type: ignore[no-any-return]


def accepts(found: dict[str, str], *hosts: str) -> bool:
    """Whether a program with these settings accepts these names, and no other. The router's
    requests carry the name that it knows a server by."""
    names = host_names(found.get("EB_ALLOW_HOSTS") or found["ALLOW_HOSTS"])
    rules = Rules(keys=(), names=names, origins=(), key_option="", origins_option="")
    refused = [rules.refusal("POST", host, "", "") for host in [*hosts, "evil.example:8500"]]
    return not any(refused[:-1]) and refused[-1] is not None


def test_pods_have_settings_that_their_programs_accept_and_time_to_end(
    objects: list[Object],
) -> None:
    servers = {
        service["metadata"]["name"]
        for service in of_kind(objects, "Service")
        if "server" in service["metadata"]["name"]
    }
    for deployment in of_kind(objects, "Deployment"):
        found, own = settings(objects, deployment), container(deployment)
        if "UPSTREAMS" in found:
            assert set(found) <= ROUTER_VARIABLES
            parsed = parse_args([], found).upstreams.split(",")
            assert {u.partition("//")[2].partition(":")[0] for u in parsed} == servers
        else:
            assert set(found) <= SERVER_VARIABLES
        if own["name"] != "model-server":  # it ends after its iteration
            drain_s = next(int(v) for k, v in found.items() if k.endswith("DRAIN_TIMEOUT"))
            stop_s = int(own["lifecycle"]["preStop"]["exec"]["command"][1])
            pod = deployment["spec"]["template"]["spec"]
            assert pod["terminationGracePeriodSeconds"] > drain_s + stop_s
            name = deployment["metadata"]["name"]
            names = name, f"{name}.a.svc:80", f"{name}.a.svc.cluster.local", "10.0.0.7"
            assert accepts(found, *names)


def test_what_a_server_compiles_or_downloads_lies_on_its_volume() -> None:
    """The root of the manifests' containers is read-only."""
    text = (DEPLOY / "server.Dockerfile").read_text()
    places = dict(re.findall(r"(\w+)=(/\S+)", text))
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"):
        assert Path("/models") in (Path(places[name]), *Path(places[name]).parents)
    for deployment in of_kind(rendered(BASE), "Deployment"):
        if container(deployment)["image"].startswith("effective-batching-server"):
            assert "/models" in {v["mountPath"] for v in container(deployment)["volumeMounts"]}


def test_images_run_as_nobody_and_the_routers_holds_all_that_it_imports(tmp_path: Path) -> None:
    for image in ("server", "router"):
        text = (DEPLOY / f"{image}.Dockerfile").read_text()
        assert "USER 10001:10001" in text
        copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
        sources = [DEPLOY.parent / name for names in copied for name in names]
        assert all(source.exists() for source in sources)
    for source in sources:
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / source.name)
    command = [sys.executable, "-m", "router", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
