"""The processes that the router's benchmark compares: the null upstream itself, and three proxies.

Each proxy is one process with one upstream, without limits and logs, otherwise started as its own
documentation says.
"""

import os
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.servers import free_port, serving

LITELLM = "litellm[proxy]"
VENV = Path("build/litellm-venv")
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}'


@dataclass(frozen=True, slots=True)
class Target:
    """A running server: `url` without a path, `version` as shown in the report."""

    name: str
    url: str
    pid: int
    version: str


@contextmanager
def _running(
    name: str, command: Sequence[str], port: int, env: dict[str, str], version: str,
    cwd: str | None = None,
) -> Iterator[Target]:  # fmt: skip
    """A server that responds to a request of the benchmark."""
    with serving(command, {**os.environ, **env}, port, _answers, cwd) as pid:
        yield Target(name, f"http://127.0.0.1:{port}", pid, version)


def _answers(url: str) -> bool:
    ask = urllib.request.Request(
        f"{url}/v1/chat/completions",
        CHAT,
        {"Content-Type": "application/json", "Authorization": "Bearer sk-x"},
    )
    try:
        with urllib.request.urlopen(ask, timeout=5) as answer:
            return b"hello" in answer.read()
    except OSError:
        return False


@contextmanager
def null_upstream() -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.router.null", str(port)]
    with _running("null upstream", command, port, {}, "") as target:
        yield target


@contextmanager
def ours(upstream: Target, *options: str) -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-m", "router", f"--port={port}", f"--upstreams={upstream.url}"]
    command += ["--max-connect-per-upstream=10000", *options]
    with _running("router", command, port, {}, "this checkout") as target:
        yield target


@contextmanager
def text_inference_batcher(folder: Path, upstream: Target) -> Iterator[Target]:
    """`folder`: a checkout of text-inference-batcher whose node application has been built."""
    entry = folder / "apps/text-inference-batcher-nodejs/dist/index.js"
    if not entry.exists():
        raise SystemExit(f"{entry} is missing: --tib takes a built checkout")
    port = free_port()
    env = {
        "UPSTREAMS": upstream.url,
        "TIB_PORT": str(port),
        "MAX_CONNECT_PER_UPSTREAM": "10000",
        "NODE_ENV": "production",
    }
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    with _running(
        "text-inference-batcher",
        ["node", str(entry.resolve())],
        port,
        env,
        f"node {node.stdout.strip()}",
        str(folder),
    ) as target:
        yield target


@contextmanager
def litellm(upstream: Target) -> Iterator[Target]:
    """LiteLLM's proxy from PyPI, in a separate environment under build/."""
    python = VENV / "bin/python"
    if not python.exists():
        print(f"installing {LITELLM} into {VENV}", file=sys.stderr)
        venv.create(VENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", LITELLM], check=True)
    shown = "import importlib.metadata as m; print(m.version('litellm'))"
    version = subprocess.run([python, "-c", shown], capture_output=True, text=True, check=True)
    port = free_port()
    config = VENV / "config.yaml"
    config.write_text(
        "model_list:\n"
        "  - model_name: m\n"
        "    litellm_params:\n"
        "      model: openai/m\n"
        f"      api_base: {upstream.url}/v1\n"
        "      api_key: x\n"
    )
    command = [str(VENV / "bin/litellm"), "--config", str(config), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False"]
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # Without keys, as the others run here.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with _running("LiteLLM", command, port, env, version.stdout.strip()) as target:
        yield target
