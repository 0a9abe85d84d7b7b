"""The policy of docs/write-a-policy.md beside the default one: the picture of that page.

    python -m benchmarks.pictures.write_a_policy      # docs/img/write-a-policy.png, some seconds

The policy is read from the page. Both schedule the 20 requests of `docs/img/policies.png`
(benchmarks/pictures/__main__.py), three in ten of them deferred, in real time on this machine: in
turns, five times each. The run of median length is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from benchmarks.common import cpu_name
from benchmarks.pictures.__main__ import LIMIT, Case, Trace, run
from benchmarks.pictures.page import command, save
from client.load.machine import ROOT
from scheduling.policies.orca import Orca
from seams import Policy, ServiceClass
from telemetry.durations import ttft_s

PAGE = ROOT / "docs" / "write-a-policy.md"
DEFERRED = (1, 4, 7, 11, 14, 17)
TIMES = 5
WAITING: dict[ServiceClass, str] = {"immediate": "#d5d5d5", "deferred": "#f9e6cf"}
RUNNING: dict[ServiceClass, str] = {"immediate": "#4c78a8", "deferred": "#f2b56b"}


def policy_of_the_page() -> Policy:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    names: dict[str, type[Policy]] = {}
    exec(found[1], names)
    return names["DeferredLast"]()


CASES = [
    Case("orca, the default: in order of arrival", "dynamic", Orca),
    Case("DeferredLast: deferred requests after the immediate ones", "dynamic", policy_of_the_page),
]


def median_ttft_ms(trace: Trace, service_class: ServiceClass) -> float:
    records = [inference.record for inference in trace.inferences]
    return 1000 * median(
        ttft_s(record)
        for record in records
        if record is not None and record.service_class == service_class
    )


def length_s(trace: Trace) -> float:
    ends_s = [inference.record.end_s for inference in trace.inferences if inference.record]
    return max(ends_s) - trace.inferences[0].arrival_s


def measure() -> list[Trace]:
    """Of each case the run of median length."""
    rounds = [[run(case, DEFERRED) for case in CASES] for _ in range(TIMES)]
    return [sorted(runs, key=length_s)[TIMES // 2] for runs in zip(*rounds, strict=True)]


def draw_one(axis: Axes, trace: Trace) -> None:
    origin_s = trace.inferences[0].arrival_s
    for line, inference in enumerate(trace.inferences):
        record, service_class = inference.record, inference.service_class
        assert record is not None
        assert record.admitted_s is not None
        for start_s, end_s, colours in (
            (record.arrival_s, record.admitted_s, WAITING),
            (record.admitted_s, record.end_s, RUNNING),
        ):
            axis.barh(
                line, end_s - start_s, left=start_s - origin_s, color=colours[service_class]
            )  # fmt: skip
    axis.set_title(
        f"{trace.name}\nmedian time to first token: immediate "
        f"{median_ttft_ms(trace, 'immediate'):.0f} ms, deferred "
        f"{median_ttft_ms(trace, 'deferred'):.0f} ms",
        loc="left", fontsize=10,
    )  # fmt: skip
    axis.set_ylabel("request")
    axis.set_yticks(range(0, len(trace.inferences), 5))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)


def draw(traces: Sequence[Trace], path: Path) -> None:
    figure, axes = plt.subplots(
        len(traces), 1, figsize=(9, 3 * len(traces)), sharex=True, layout="constrained"
    )
    for axis, trace in zip(axes, traces, strict=True):
        draw_one(axis, trace)
    axes[-1].set_xlabel(
        f"seconds since the first arrival; embedded model, batch limit {LIMIT}, {cpu_name()}"
    )
    figure.legend(
        handles=[
            Patch(color=colours[service_class], label=f"{service_class}, {phase}")
            for service_class in RUNNING
            for phase, colours in (("waiting", WAITING), ("running", RUNNING))
        ],
        loc="outside lower center", ncols=4, fontsize=9, frameon=False,
    )  # fmt: skip
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "write-a-policy.png"))


if __name__ == "__main__":
    main()
