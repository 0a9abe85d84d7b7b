"""The cost of the router, beside routers in Rust, text-inference-batcher and LiteLLM's proxy.

    python -m benchmarks.router                               # the router against no router
    python -m benchmarks.router --rust --litellm --tib DIR    # with its peers

Loopback, one null upstream that responds at once (nginx): requests per second at 16 connections
and latency at one, sent by `wrk`, both packages of Debian's. Then many streams at once, from an
upstream that says when it sent each token: how late tokens come. Each proxy has one upstream,
without limits and logs, otherwise started as its own documentation says; ours with one process and
with two. Targets take turns.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path

from benchmarks.harness.report import options, report, rows_of, table_of
from benchmarks.harness.servers import serving
from client.experiment import Experiment
from client.load.machine import ROOT
from client.load.servers.processes import free_port

LITELLM = "litellm[proxy]"
RUST_VENV = Path("build/rust-routers-venv").resolve()
VENV = Path("build/litellm-venv").resolve()
PATH = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-x"}
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}'
MESSAGE = {"role": "assistant", "content": "hello"}
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}
NULL, OURS = "no router", "router, two workers"
STREAM_METRICS = ("lag_p99_ms", "lag_p50_ms", "missing")
METRICS = ("requests_per_s", "p99_ms", "p50_ms_alone", "p99_ms_alone", "not_200")


@contextmanager
def null_upstream() -> Iterator[str]:
    """nginx, of which each path has one answer; its URL."""
    places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    with free_port() as port, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1;\n"
            "events { worker_connections 8192; }\n"
            "http { access_log off; keepalive_requests 1000000000; default_type application/json;\n"
            + "".join(f"{name}_temp_path {folder}/{name};\n" for name in places)
            + f"server {{ listen 127.0.0.1:{port} backlog=4096;\n"
            f"location {PATH} {{ return 200 '{json.dumps(ANSWER)}'; }}\n"
            f"location = /v1/models {{ return 200 '{json.dumps(MODELS)}'; }}\n"
            "location / { return 200 '{}'; } } }\n"
        )
        command = ["sh", "-c", f"exec nginx -c {config} -e {folder}/log", "nginx"]
        with serving(command, port=port, ready=answers) as url:
            yield url


def answers(url: str) -> bool:
    try:
        ask = urllib.request.Request(f"{url}{PATH}", CHAT, HEADERS)
        with urllib.request.urlopen(ask, timeout=5) as answer:
            return b"hello" in answer.read(200)
    except OSError:
        return False


def text_inference_batcher(folder: Path, upstream: str, port: int) -> AbstractContextManager[str]:
    """`folder`: a checkout of text-inference-batcher whose node application has been built."""
    entry = folder / "apps/text-inference-batcher-nodejs/dist/index.js"
    if not entry.exists():
        raise SystemExit(f"{entry} is missing: --tib takes a built checkout")
    variables = {
        "UPSTREAMS": upstream, "TIB_PORT": str(port), "MAX_CONNECT_PER_UPSTREAM": "10000",
        "NODE_ENV": "production",
    }  # fmt: skip
    command = ["node", str(entry.resolve())]
    return serving(command, variables, port=port, ready=answers, cwd=folder)


def installed(folder: Path, *packages: str) -> Path:
    """A separate environment with them; its programs."""
    if not (folder / "bin/python").exists():
        print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", *packages], check=True)
    return folder / "bin"


def ours(upstream: str, workers: int) -> AbstractContextManager[str]:
    command = [sys.executable, "-m", "router", f"--upstreams={upstream}", f"--workers={workers}"]
    return serving([*command, "--max-connect-per-upstream=10000"], ready=answers)


@contextmanager
def in_rust(program: str, upstream: str, *start: str) -> Iterator[str]:
    """`vllm-router` or `smg`, two wheels of PyPI."""
    bin_ = installed(RUST_VENV, "vllm-router", "smg")
    with free_port() as metrics:
        command = [str(bin_ / program), *start, "--worker-urls", upstream]
        # others ask the upstream a question more for each request
        command += ["--policy", "round_robin"]
        command += ["--max-concurrent-requests", "10000", "--prometheus-port", str(metrics)]
        with serving([*command, "--log-level", "error"], ready=answers) as url:
            yield url


def litellm(upstream: str) -> AbstractContextManager[str]:
    """LiteLLM's proxy from PyPI."""
    bin_, config = installed(VENV, LITELLM), VENV / "config.yaml"
    params = {"model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "x"}
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": params}]}))
    command = [str(bin_ / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    variables = {
        "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # without keys, as the others run here
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }  # fmt: skip
    return serving(
        [*command, "--num_workers", "1", "--telemetry", "False"], variables, ready=answers
    )


def turn(url: str, seconds: float, _: int) -> dict[str, float]:
    """Requests a second at 16 connections, each sending its next request after the response, and
    latencies in milliseconds."""
    many, one = (wrk(url, connections, seconds) for connections in (16, 1))
    values = many["rate"], many["99%"], one["50%"], one["99%"], many["failed"] + one["failed"]
    return dict(zip(METRICS, values, strict=True))


def wrk(url: str, connections: int, seconds: float) -> dict[str, float]:
    """What `wrk` prints: requests a second, two percentiles in milliseconds, other statuses."""
    headers = "".join(f"wrk.headers['{k}'] = '{v}'\n" for k, v in HEADERS.items())
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(f"wrk.method = 'POST'\nwrk.body = '{CHAT.decode()}'\n{headers}")
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency"]
        command += ["--timeout", "10s", "-s", file.name, f"{url}{PATH}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    times = re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)", text)
    if rate is None or len(times) != 2:
        raise SystemExit(f"wrk printed nothing like its report:\n{text}")
    unit_ms = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    found = {f"{rank}%": float(value) * unit_ms[unit] for rank, value, unit in times}
    return {**found, "rate": float(rate[1]), "failed": float(bad[1]) if bad else 0.0}


def stream_turn(url: str, streams: int, _: int) -> dict[str, float]:
    """Lags of the tokens of so many streams at once."""
    command = [sys.executable, "-m", "benchmarks.router_streams", "read", url, str(streams)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def targets(stack: ExitStack, upstream: str, args: Namespace) -> dict[str, str]:
    """Each proxy before the upstream, and the upstream itself, by name."""
    proxies = {OURS: ours(upstream, 2), "router": ours(upstream, 1)}
    if args.rust:
        proxies["vllm-router"] = in_rust("vllm-router", upstream)
        proxies["smg"] = in_rust("smg", upstream, "launch")
    if args.tib:
        port = stack.enter_context(free_port())
        proxies["text-inference-batcher"] = text_inference_batcher(args.tib, upstream, port)
    if args.litellm:
        proxies["LiteLLM"] = litellm(upstream)
    return {**{name: stack.enter_context(one) for name, one in proxies.items()}, NULL: upstream}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default: 5)")
    parser.add_argument("--streams", type=int, default=500, help="at once (default: 500)")
    parser.add_argument("--tib", type=Path, help="a built checkout of text-inference-batcher")
    parser.add_argument(
        "--rust", action="store_true", help="vllm-router and smg too, installed into build/"
    )
    parser.add_argument(
        "--litellm", action="store_true",
        help=f"LiteLLM's proxy too; installs {LITELLM} into build/ on first use",
    )  # fmt: skip
    args = parser.parse_args()
    found = []
    with ExitStack() as stack:
        urls = targets(stack, stack.enter_context(null_upstream()), args)
        sides = {name: partial(turn, url, args.seconds) for name, url in urls.items()}
        found.append(Experiment(sides, {m: itemgetter(m) for m in METRICS}, OURS).run(args.rounds))
    args.litellm = False  # it cannot hold so many streams
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.router_streams", "serve"]
        upstream = stack.enter_context(serving(command, ready=answers))
        urls = targets(stack, upstream, args)
        sides = {name: partial(stream_turn, url, args.streams) for name, url in urls.items()}
        metrics = {metric: itemgetter(metric) for metric in STREAM_METRICS}
        found.append(Experiment(sides, metrics, NULL).run(args.rounds))
    title = "Shared by load, proxy and upstream"
    lags = f"Tokens of {args.streams} streams, ten a second each:\n\n{table_of(found[1:])}"
    report(found[:1], title, args.out, "router", lags, streams=rows_of(found[1]))


if __name__ == "__main__":
    main()
