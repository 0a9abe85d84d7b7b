"""The device on which a model runs: what `--device` means on this machine.

`choose` decides from facts alone; `look` collects these from torch, the driver and the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.networks import WHOLE, Part
from seams import LoadError

ALLOWED = re.compile(r"auto|cpu|cuda(:(\d+))?")
DRIVER = Path("/proc/driver/nvidia/version")
SMI_S = 10.0  # for nvidia-smi, which can hang with a broken driver


@dataclass(frozen=True, slots=True)
class GPU:
    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known about GPUs here."""

    torch: str  # its version
    cuda: str | None = None  # for which torch was built; None: for CPUs, or for GPUs of AMD
    built_for: Sequence[str] = ()  # architectures such as sm_90; none: not known
    found: Sequence[GPU] = ()  # that torch can reach, by index
    driver: str | None = None  # NVIDIA's version; None: there is no NVIDIA GPU
    in_reach: bool = True  # this process sees the driver's device files
    visible: str | None = None  # CUDA_VISIBLE_DEVICES
    complaint: str = ""  # torch's own words, if it finds no GPU

    @property
    def hidden(self) -> bool:
        """Whether the user excludes all GPUs."""
        return self.visible is not None and self.visible.strip() in ("", "-1")


@dataclass(frozen=True, slots=True)
class Chosen:
    device: torch.device  # a GPU has an index
    unused_gpu: str | None = None  # why the machine's GPU is not used, and the remedy


def resolve_device(name: str, part: Part = WHOLE) -> Chosen:
    """The device of `--device`; for a `part` of a model the GPU with the number of its rank. Raises
    LoadError."""
    if name == "cpu":
        return Chosen(torch.device("cpu"))
    return choose(name, look(), part)


def choose(name: str, facts: DeviceFacts, part: Part = WHOLE) -> Chosen:
    """`resolve_device` on a machine with these `facts`. Raises LoadError."""
    asked = ALLOWED.fullmatch(name)
    if asked is None:
        raise LoadError(f"--device is '{name}'; allowed: auto, cpu, cuda, cuda:0, cuda:1 ...")
    if name == "cpu":
        return Chosen(torch.device("cpu"))
    if not facts.found:
        why = _why_none(facts)
        if name == "auto":
            return Chosen(torch.device("cpu"), None if facts.hidden else why)
        told = f" ({why})" if why else ""
        raise LoadError(f"--device {name}: torch finds no GPU{told}; allowed here: auto, cpu")
    own, used = part.rank, range(part.shards)  # all ranks see the same GPUs and decide alike
    if asked[2]:  # a rank on another machine than the others
        own = int(asked[2])
        used = range(own, own + 1)
    if used[-1] >= len(facts.found):
        raise LoadError(_too_few(name, len(facts.found), part))
    why = next((why for index in used if (why := _not_built_for(facts, index))), None)
    if why is None:
        return Chosen(torch.device("cuda", own))
    if name == "auto":
        return Chosen(torch.device("cpu"), why)
    raise LoadError(f"--device {name}: {why}; allowed here: auto, cpu")


def _too_few(name: str, found: int, part: Part) -> str:
    there = ", ".join(f"cuda:{index}" for index in range(found))
    if ":" in name:
        return f"--device {name}: torch finds no such GPU; allowed here: auto, cpu, {there}"
    return (
        f"--device {name}: each of {part.shards} shards needs its own GPU, and torch finds {found} "
        f"({there}); allowed here: {found} shards or fewer, --device cpu, or --device cuda:N for a "
        "rank whose other ranks run on other machines"
    )


def _why_none(facts: DeviceFacts) -> str | None:
    """Why torch reaches no GPU although there is one, and the remedy; None: there is none."""
    if facts.hidden:
        return "CUDA_VISIBLE_DEVICES excludes all GPUs"
    if facts.driver is None:
        return None
    there = f"an NVIDIA GPU is here, driver {facts.driver}"
    if facts.cuda is None:
        return f"{there}, but torch {facts.torch} is a build without CUDA: install one with CUDA"
    if not facts.in_reach:
        return (
            f"{there}, but this process may not use it: a container needs access to it, such as "
            "docker run --gpus all"
        )
    words = f" ({facts.complaint})" if facts.complaint else ""
    which = f", or name another GPU than CUDA_VISIBLE_DEVICES={facts.visible}"
    return (
        f"{there}, but torch {facts.torch}, built for CUDA {facts.cuda}, cannot use it{words}: "
        "install a newer driver, or a build of torch for the driver's CUDA, whose version "
        f"nvidia-smi shows{'' if facts.visible is None else which}"
    )


def _not_built_for(facts: DeviceFacts, index: int) -> str | None:
    """Why torch has no code for a GPU, and the remedy; None: it has."""
    gpu = facts.found[index]
    if runs_on(gpu.capability, facts.built_for):
        return None
    is_old = all(gpu.capability < least for _, least in _codes(facts.built_for))
    return (
        f"torch {facts.torch}, built for CUDA {facts.cuda}, has no code for {gpu.name} (compute "
        f"capability {gpu.capability[0]}.{gpu.capability[1]}, driver {facts.driver or 'unknown'}), "
        f"only for {' '.join(facts.built_for)}: install a build of torch that includes this GPU, "
        f"such as one for {'an older' if is_old else 'a newer'} CUDA"
    )


def runs_on(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Whether code for these architectures runs there. Machine code (sm_86) runs on GPUs with the
    same major and at least the same minor number, intermediate code (compute_90) on all later GPUs
    (NVIDIA, "CUDA C++ Programming Guide"). Letters after the number are ignored."""
    codes = _codes(built_for)
    if not codes:  # not NVIDIA's, or torch does not say
        return True
    return any(
        least <= capability and (kind == "compute" or least[0] == capability[0])
        for kind, least in codes
    )


def _codes(built_for: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """The kind of each code and the least capability that it needs."""
    known = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]*", each) for each in built_for]
    return [(each[1], (int(each[2]), int(each[3]))) for each in known if each is not None]


def look() -> DeviceFacts:
    with warnings.catch_warnings(record=True) as said:  # they go into the answer
        warnings.simplefilter("always")
        complaint, found = "", list[GPU]()
        try:
            if torch.cuda.is_available():
                found = [
                    GPU(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
                    for i in range(torch.cuda.device_count())
                ]
        except RuntimeError as error:
            complaint = str(error)
    if not found and not complaint:
        complaint = " ".join(str(warning.message) for warning in said)
    driver = _driver()
    return DeviceFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        built_for=torch.cuda.get_arch_list(),
        found=found,
        driver=driver,
        in_reach=any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        complaint=re.split(r"\n|\. Please update| \(Triggered", complaint)[0],
    )


def _driver() -> str | None:
    """The version of NVIDIA's driver, if it is loaded."""
    try:
        said = DRIVER.read_text()
    except OSError:  # as under Windows, whose driver WSL uses
        said = ""
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(
                command, capture_output=True, text=True, timeout=SMI_S, check=True
            ).stdout.strip()
    version = re.search(r"\d+(\.\d+)+", said)
    if version is not None:
        return version[0]
    return "unknown" if said else None
