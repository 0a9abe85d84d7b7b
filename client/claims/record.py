"""Claims on disk: what was concluded, the picture, and the runs, from which both can be made
again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from client.claims.catalogue import CLAIMS, Claim
from client.claims.pictures import picture
from client.claims.play import Played
from client.claims.report import as_text, conclude
from client.load.machine import commit, machine
from client.load.raw import RawError, read_raw, write_raw
from client.load.records import Run
from client.workloads.traffic import Speed
from client.workloads.workload_file import write_workload


def claim_of(policy: str, like: str | None) -> Claim:
    """Of a policy; ``like`` names the claim whose traffic and metric another policy is put to.
    Raises KeyError."""
    claim = CLAIMS[like or policy]
    return claim if like is None else replace(claim, policy=policy)


def write(folder: Path, played: Played, like: str | None, *, runs: bool = True) -> dict[str, Any]:
    """Raw data first, unless ``runs`` are not wanted. Returns what was concluded."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "policy": played.claim.policy, "like": like, "model": played.model,
        "seconds": played.seconds, "speed": asdict(played.speed), "servers": played.servers,
        "machine": machine(), "commit": commit(),
    }  # fmt: skip
    if runs:
        _write_runs(folder, played)
        (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return written(folder, played, about)


def _write_runs(folder: Path, played: Played) -> None:
    workloads = folder / "workloads"
    workloads.mkdir(exist_ok=True)
    runs = [
        ({"job": {"part": part, "seed": seed, "side": side}}, run)
        for part, sides in played.turns.items()
        for side, own in sides.items()
        for seed, run in enumerate(own)
    ]
    for _, run in runs:
        path = workloads / f"{run.workload.sha256[:16]}.jsonl"
        if not path.exists():
            write_workload(run.workload, path)
    write_raw(folder, runs)


def written(folder: Path, played: Played, about: dict[str, Any]) -> dict[str, Any]:
    """The conclusion and the picture."""
    found = conclude(played) | {"machine": about["machine"], "commit": about["commit"]}
    (folder / "claim.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "claim.txt").write_text(as_text(found) + "\n")
    (folder / "picture.svg").write_text(picture(played))
    return found


def again(folder: Path) -> dict[str, Any]:
    """The same from a folder's runs. Raises RawError and WorkloadError."""
    try:
        about = json.loads((folder / "about.json").read_text())
    except (OSError, ValueError) as error:
        raise RawError(f"{folder / 'about.json'}: {error}") from None
    turns: dict[str, dict[str, list[Run]]] = {}
    for told, run in read_raw(folder):
        sides = turns.setdefault(told["job"]["part"], {})
        sides.setdefault(told["job"]["side"], []).append(run)
    claim = claim_of(about["policy"], about["like"])
    played = Played(
        claim,
        about["model"],
        about["seconds"],
        Speed(**about["speed"]),
        about["servers"],
        {**turns},
    )
    return written(folder, played, about)


def recorded(folder: Path) -> list[dict[str, Any]]:
    """All that was concluded in a folder and those in it, by the order of the catalogue."""
    found = [json.loads(path.read_text()) for path in sorted(folder.rglob("claim.json"))]
    order = list(CLAIMS)
    return sorted(
        found,
        key=lambda one: (
            one["model"], order.index(one["policy"]) if one["policy"] in order else len(order)
        ),
    )  # fmt: skip
