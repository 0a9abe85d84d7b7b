"""The claims, one for each policy, as `catalogue.toml` states them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from client.workloads.traffic import Flow, Traffic

ROWS = 8  # of an iteration: few, so that a queue forms under a load that one client can send
HALF_EMPTY = 0.5
_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Claim:
    """``metric`` is a key of `figures.METRICS`, ``paper`` the authors' value of policy / baseline
    in it, None where theirs is another. ``options`` are the servers'. Under the traffic ``calm``
    the policy should change nothing."""

    policy: str
    baseline: str
    source: str
    claim: str
    metric: str
    traffic: Traffic
    calm: Traffic
    paper: float | None = None
    options: tuple[str, ...] = ()
    prefix_caching: bool = False


def stated(policy: str, table: dict[str, Any]) -> Claim:
    """The claim that a table of the catalogue states."""
    read, flows = TypeAdapter(tuple[Flow, ...]).validate_python, table.pop("flows")
    arrivals = table.pop("arrivals", "poisson")
    traffic = Traffic(read(flows), table.pop("load"), arrivals)
    calm = Traffic(read(table.pop("calm_flows", flows)), table.pop("calm_load", HALF_EMPTY))
    table["options"] = tuple(table.get("options", ()))
    return Claim(policy, traffic=traffic, calm=calm, **table)


CLAIMS = {name: stated(name, of) for name, of in tomllib.loads(_FILE.read_text()).items()}
