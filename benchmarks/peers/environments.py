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
# of Debian's libtcmalloc-minimal4; vLLM's manual for CPUs recommends preloading it
MALLOC = "libtcmalloc_minimal.so.4"


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with its settings."""

    name: str
    environment: str  # folder under build/peers, pins in pins/NAME.txt
    runner: str  # a module of engines/
    dtypes: tuple[str, ...]
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
    Peer("OpenVINO GenAI", "openvino", "with_openvino", ALL),
    Peer("vLLM", "vllm", "with_vllm", ALL, variables=VLLM_VARIABLES, preload=(MALLOC,)),
    Peer("llama.cpp", "llamacpp", "with_llamacpp", (*ALL, "q8_0", "q4_0", "file")),
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
    """Its process has these beside ours. Libraries to preload that are missing are left out; the
    runner reports the ones it found."""
    folders = Path("/usr/lib").glob("*-linux-gnu")
    places = [folder / name for folder in folders for name in peer.preload]
    preload = ":".join(str(place) for place in places if place.exists())
    return {"HF_HUB_OFFLINE": "1", **peer.variables, **({"LD_PRELOAD": preload} if preload else {})}
