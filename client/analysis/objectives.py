"""Objectives: the latencies that a good request does not exceed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from client.workloads.spec import SpecError

_UNIT_S = {"ms": 1e-3, "s": 1.0}  # "ms" before "s", which it ends with


@dataclass(frozen=True, slots=True)
class Objectives:
    """Objectives that a good request meets, in seconds; None: no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


def parse_objectives(text: str) -> Objectives:
    """``ttft:500ms,tpot:50ms,e2e:10s``. A number needs its unit: 500 might be either."""
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        unit = next((u for u in _UNIT_S if value.endswith(u)), None)
        try:
            number = float(value.removesuffix(unit or ""))
        except ValueError:
            number = math.nan
        if (
            name not in ("ttft", "tpot", "e2e")
            or not 0 < number < math.inf
            or f"{name}_s" in values
        ):
            raise SpecError(
                f"objectives {text!r}: expected ttft:500ms,tpot:50ms,e2e:10s, each once and > 0"
            )
        if unit is None:
            raise SpecError(
                f"objectives {text!r}: {value} has no unit; write {name}:{value}ms or "
                f"{name}:{value}s"
            )
        values[f"{name}_s"] = number * _UNIT_S[unit]
    return Objectives(**values)
