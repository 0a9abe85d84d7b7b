"""The deployment files: against the Kubernetes schemas, and against what the programs expect."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from launcher import tgi
from launcher.config import LauncherConfig
from model_server.config import ServeConfig
from router.config import Config, parse_args
from serving.config import Config as ServerConfig
from web.browsers import Rules, host_names

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = [
    "base",
    "overlays/production",
    "overlays/two-models",
    "overlays/shards",
    "overlays/remote-model",
]
KUBERNETES_VERSION = "1.37.0"
# Settings of a cluster's own extensions have no schema in Kubernetes.
EXTENSIONS = {"ServiceMonitor", "Kustomization", "Component"}
Object = dict[str, Any]

ROUTER_VARIABLES = {name for option in Config.declared() for name in option.variables}
SERVER_VARIABLES = {
    name
    for program in (ServerConfig, LauncherConfig, ServeConfig)
    for option in program.declared()
    for name in option.variables
}


def documents() -> Iterator[tuple[Path, Object]]:
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path, document


def check(document: Object) -> None:
    if document["kind"] not in EXTENSIONS:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def rendered(overlay: str) -> list[Object]:
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]):
            text = subprocess.run(
                [*command, KUBERNETES / overlay], capture_output=True, text=True, check=True
            ).stdout
            return list(yaml.safe_load_all(text))
    pytest.skip("neither kubectl nor kustomize is here: overlays are not rendered")


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def test_every_manifest_fits_the_kubernetes_schema() -> None:
    found = [document for _, document in documents()]
    for document in found:
        check(document)
    assert {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"} <= {
        d["kind"] for d in found
    }


def test_the_schema_check_notices_a_wrong_field() -> None:
    wrong = next(d for _, d in documents() if d["kind"] == "Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(wrong)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_renders_to_manifests_that_fit_the_schema(overlay: str) -> None:
    objects = rendered(overlay)
    for document in objects:
        check(document)
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_service_and_budget_selects_the_pods_of_exactly_one_deployment(overlay: str) -> None:
    objects = rendered(overlay)
    for selecting in of_kind(objects, "Service") + of_kind(objects, "PodDisruptionBudget"):
        selector = selecting["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        chosen = [
            d["metadata"]["name"]
            for d in of_kind(objects, "Deployment")
            if wanted <= d["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert chosen == [selecting["metadata"]["name"]]


def selects(selector: Object, deployment: Object) -> bool:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", [])
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_routers_reach_servers_and_only_servers_their_model(overlay: str) -> None:
    objects = rendered(overlay)
    deployments = of_kind(objects, "Deployment")
    callers = {"server": "router", "model-server": "server", "router": None}
    for deployment in deployments:
        allowed = [
            caller["spec"]["template"]["spec"]["containers"][0]["name"]
            for policy in of_kind(objects, "NetworkPolicy")
            if selects(policy["spec"]["podSelector"], deployment)
            for rule in policy["spec"]["ingress"]
            for source in rule["from"]
            for caller in deployments
            if selects(source["podSelector"], caller)
        ]
        caller = callers[deployment["spec"]["template"]["spec"]["containers"][0]["name"]]
        assert allowed == ([] if caller is None else [caller])


def test_in_production_servers_require_the_key_that_routers_send() -> None:
    key = {"secretKeyRef": {"name": "eb-server-key", "key": "key"}}
    names = {"eb-server": "API_KEY", "eb-router": "UPSTREAM_API_KEY"}
    assert names["eb-server"] in SERVER_VARIABLES
    assert names["eb-router"] in ROUTER_VARIABLES
    for deployment in of_kind(rendered("overlays/production"), "Deployment"):
        environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        variable = names[deployment["metadata"]["name"]]
        assert {"name": variable, "valueFrom": key} in environment


def test_a_model_that_serves_one_server_is_left_before_the_next_begins() -> None:
    for deployment in of_kind(rendered("overlays/remote-model"), "Deployment"):
        if deployment["metadata"]["name"] != "eb-router":
            assert deployment["spec"]["replicas"] == 1
            assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_setting_is_an_option_of_its_program_and_the_router_accepts_it(overlay: str) -> None:
    objects = rendered(overlay)
    services = {s["metadata"]["name"] for s in of_kind(objects, "Service")}
    maps = of_kind(objects, "ConfigMap")
    for settings in maps:
        if "UPSTREAMS" not in settings["data"]:
            assert set(settings["data"]) <= SERVER_VARIABLES
            continue
        assert set(settings["data"]) <= ROUTER_VARIABLES
        parsed = parse_args([], settings["data"])
        hosts = {u.partition("//")[2].partition(":")[0] for u in parsed.upstreams.split(",")}
        assert hosts == {s for s in services if "server" in s}
    names = {m["metadata"]["name"] for m in maps}
    for deployment in of_kind(objects, "Deployment"):
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert container["envFrom"][0]["configMapRef"]["name"] in names


def test_defect_16_the_manifests_have_probes_accounts_contexts_budgets_and_all_options() -> None:
    objects = [document for _, document in documents()]
    accounts = {a["metadata"]["name"] for a in of_kind(objects, "ServiceAccount")}
    deployments = of_kind(objects, "Deployment")
    assert {d["metadata"]["name"] for d in deployments} == {"eb-server", "eb-router", "eb-model"}
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        container = pod["containers"][0]
        assert pod["serviceAccountName"] in accounts
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "startupProbe" in container
        ready, alive = container["readinessProbe"], container["livenessProbe"]
        if container["name"] != "model-server":  # which speaks gRPC
            assert ready["httpGet"]["path"] == "/health"
        assert alive.get("httpGet", {}).get("path") != "/health"
        assert container["envFrom"], "every option can be set by its environment variable"
    budgets = {b["metadata"]["name"] for b in of_kind(objects, "PodDisruptionBudget")}
    assert budgets == {d["metadata"]["name"] for d in deployments}
    assert of_kind(objects, "HorizontalPodAutoscaler")
    assert of_kind(objects, "ServiceMonitor")


@pytest.mark.parametrize("program", ["server", "router"])
def test_pods_are_given_longer_to_end_than_the_longest_answer_may_take(program: str) -> None:
    listed = yaml.safe_load((KUBERNETES / program / "kustomization.yaml").read_text())
    literals = dict(s.split("=", 1) for s in listed["configMapGenerator"][0]["literals"])
    drain_s = next(int(v) for k, v in literals.items() if k.endswith("DRAIN_TIMEOUT"))
    documents = yaml.safe_load_all((KUBERNETES / program / f"{program}.yaml").read_text())
    pod = next(d for d in documents if d["kind"] == "Deployment")["spec"]["template"]["spec"]
    stop_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain_s + stop_s


def test_compose_runs_two_servers_with_different_models_behind_a_router() -> None:
    services = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    router = services.pop("router")
    assert set(router["environment"]) <= ROUTER_VARIABLES
    config = parse_args([], router["environment"])
    assert config.upstreams.split(",") == [f"http://{name}:8500" for name in services]
    assert all(set(s["environment"]) <= SERVER_VARIABLES for s in services.values())
    assert len({str(s["environment"]) for s in services.values()}) == 2
    grace = int(router["stop_grace_period"].removesuffix("s"))
    assert grace > config.drain_timeout


def test_compose_runs_a_launcher_with_two_shards_and_a_server_with_a_remote_model() -> None:
    text = (DEPLOY / "docker-compose.shards.yml").read_text()
    services = yaml.safe_load(text)["services"]
    launched = services["launcher"]["environment"]
    words = tgi.from_environment(launched, [])
    config = LauncherConfig.from_args([w for w in words if w in {"--shards", "2"}], {})
    assert config.shards == 2
    server, model = services["server"]["environment"], services["model-server"]["environment"]
    for program, settings in ((ServerConfig, server), (ServeConfig, model)):
        names = {name for option in program.declared() for name in option.variables}
        assert set(settings) <= names
    assert server["EB_MODEL"] == model["EB_MODEL"]
    port = model["EB_LISTEN"].rpartition(":")[2]
    assert server["EB_REMOTE_MODEL"] == f"model-server:{port}"


def accepted(names: str, host: str) -> bool:
    """Whether a program without a key, with these names, accepts the host."""
    rules = Rules(keys=(), names=host_names(names), origins=(), key_option="", origins_option="")
    return rules.refusal("POST", host, "", "") is None


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker-compose.shards.yml"])
def test_every_service_of_compose_accepts_its_name_and_no_other(file: str) -> None:
    """So the router's requests, which carry the name that it knows a server by, are accepted."""
    for name, service in yaml.safe_load((DEPLOY / file).read_text())["services"].items():
        settings = service["environment"]
        if service.get("command") != ["model-server"]:
            names = settings.get("EB_ALLOW_HOSTS") or settings["ALLOW_HOSTS"]
            assert accepted(names, f"{name}:8500")
            assert not accepted(names, "evil.example:8500")


@pytest.mark.parametrize(
    ("folder", "service"),
    [
        ("server", "eb-server"),
        ("overlays/two-models/second", "second-eb-server"),
        ("router", "eb-router"),
    ],
)
def test_pods_accept_the_names_of_their_service(folder: str, service: str) -> None:
    listed = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
    literals = dict(s.split("=", 1) for s in listed["configMapGenerator"][0]["literals"])
    names = literals.get("EB_ALLOW_HOSTS") or literals["ALLOW_HOSTS"]
    for host in (service, f"{service}.a.svc:80", f"{service}.a.svc.cluster.local", "10.0.0.7:8500"):
        assert accepted(names, host)
    assert not accepted(names, "evil.example:8500")


@pytest.mark.parametrize("image", ["server", "router"])
def test_images_run_as_nobody_and_copy_what_exists(image: str) -> None:
    text = (DEPLOY / f"{image}.Dockerfile").read_text()
    assert "USER 10001:10001" in text
    for line in text.splitlines():
        if line.startswith("COPY"):
            assert (DEPLOY.parent / line.split()[1]).exists()


def test_the_routers_image_holds_all_that_the_router_imports(tmp_path: Path) -> None:
    for line in (DEPLOY / "router.Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for name in line.split()[1:-1]:
                source = DEPLOY.parent / name
                copy = shutil.copytree if source.is_dir() else shutil.copy
                copy(source, tmp_path / source.name)
    command = [sys.executable, "-m", "router", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_servers_image_can_compile_its_kernel_and_keep_it() -> None:
    """With a compiler, into a volume: its root is read-only, and no code runs from a tmpfs."""
    text = (DEPLOY / "server.Dockerfile").read_text()
    assert re.search(r"^RUN apt-get .* g\+\+", text, re.MULTILINE)
    found = re.search(r"XDG_CACHE_HOME=(\S+)", text)
    assert found
    services = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    manifests = yaml.safe_load_all((KUBERNETES / "server" / "server.yaml").read_text())
    pod = next(d for d in manifests if d["kind"] == "Deployment")["spec"]["template"]["spec"]
    volumes = [
        [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]],
        *(
            [v.split(":")[1] for v in services[name]["volumes"]]
            for name in ("server-a", "server-b")
        ),
    ]
    for mounted in volumes:
        assert any(Path(found[1]).is_relative_to(path) for path in mounted)
