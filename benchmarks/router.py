"""The cost of the router, compared with text-inference-batcher and LiteLLM's proxy in the same run.

    python -m benchmarks.router                               # the router against no router
    python -m benchmarks.router --litellm --tib DIR           # with its peers

Loopback, one process each, one null upstream that responds at once: requests per second at 16
connections and latency at one, sent by `wrk`, a package of Debian's. Each proxy has one upstream,
without limits and logs, otherwise started as its own documentation says. Targets take turns.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from operator import itemgetter
from pathlib import Path

from aiohttp import web

from benchmarks.harness.report import options, report
from benchmarks.harness.servers import serving
from client.experiment import Experiment
from client.load.servers.processes import free_port

LITELLM = "litellm[proxy]"
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
NULL, OURS = "no router", "router"
METRICS = ("requests_per_s", "p99_ms", "p50_ms_alone", "p99_ms_alone", "not_200")


def serve_null(port: int) -> None:
    """The upstream: each path has one answer."""

    async def answer(body: bytes, _: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    for method, path, body in (("POST", PATH, ANSWER), ("GET", "/v1/models", MODELS)):
        app.router.add_route(method, path, partial(answer, json.dumps(body).encode()))
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, backlog=4096)


def answers(url: str) -> bool:
    try:
        ask = urllib.request.Request(f"{url}{PATH}", CHAT, HEADERS)
        with urllib.request.urlopen(ask, timeout=5) as answer:
            return b"hello" in answer.read()
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


def litellm(upstream: str) -> AbstractContextManager[str]:
    """LiteLLM's proxy from PyPI, in a separate environment under build/."""
    python, config = VENV / "bin/python", VENV / "config.yaml"
    if not python.exists():
        print(f"installing {LITELLM} into {VENV}", file=sys.stderr)
        venv.create(VENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", LITELLM], check=True)
    params = {"model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "x"}
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": params}]}))
    command = [str(VENV / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1"]
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


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default: 5)")
    parser.add_argument("--tib", type=Path, help="a built checkout of text-inference-batcher")
    parser.add_argument(
        "--litellm", action="store_true",
        help=f"LiteLLM's proxy too; installs {LITELLM} into build/ on first use",
    )  # fmt: skip
    args = parser.parse_args()
    with ExitStack() as stack:
        program = "import sys, benchmarks.router as it; it.serve_null(int(sys.argv[2]))"
        null = stack.enter_context(serving([sys.executable, "-c", program], ready=answers))
        ours = [sys.executable, "-m", "router", f"--upstreams={null}"]
        ours += ["--max-connect-per-upstream=10000"]
        urls = {OURS: stack.enter_context(serving(ours, ready=answers)), NULL: null}
        if args.tib:
            port = stack.enter_context(free_port())
            tib = text_inference_batcher(args.tib, null, port)
            urls["text-inference-batcher"] = stack.enter_context(tib)
        if args.litellm:
            urls["LiteLLM"] = stack.enter_context(litellm(null))
        sides = {name: partial(turn, url, args.seconds) for name, url in urls.items()}
        metrics = {metric: itemgetter(metric) for metric in METRICS}
        found = Experiment(sides, metrics, OURS).run(args.rounds)
    report([found], "Shared by load, proxy and upstream", args.out, "router")


if __name__ == "__main__":
    main()
