"""A claim from servers to the page: played, concluded, drawn and written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

from client.claims.__main__ import main
from client.claims.catalogue import CLAIMS, Claim, stated
from client.claims.figures import METRICS
from client.claims.play import BLOCK, Played, play
from client.claims.report import as_text, ratio, recorded, smallest, summary, write
from client.claims.verdict import MOST_FALSE, SEEN, TOO_CLOSE
from client.load.servers.processes import System
from client.workloads.traffic import Flow, Speed, Traffic, open_loop
from tests.client.conftest import command

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "results" / "reference-claims"
SECONDS, SEEDS = 0.5, 3
TRAFFIC = Traffic(
    (Flow(1, "fixed:4", "fixed:4", user="a"), Flow(1, "fixed:4", "fixed:4", user="b")), 0.5
)


def sleeping(policy: str, claim: Claim, model: str, options: Sequence[str]) -> System:
    """A server whose iterations sleep, the slower one's four times as long."""
    return System(policy, command("dynamic", base_s={"fast": 0.01}.get(policy, 0.04)), None)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    claim = replace(
        CLAIMS["srpt"], policy="fast", baseline="slow", traffic=TRAFFIC, calm=TRAFFIC, paper=None
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("client.claims.play._WARM_S", (0.5, 9.0))
        logs = tmp_path_factory.mktemp("logs")
        return play(claim, "sleep", SECONDS, SEEDS, logs, system=sleeping)


def test_a_block_is_the_baseline_the_policy_and_the_baseline_again(played: Played) -> None:
    blocks = played.blocks("traffic")
    assert len(blocks) == SEEDS
    for block in blocks:
        assert tuple(block) == BLOCK
        lengths = [[r.output_tokens for r in run.workload.requests] for run in block.values()]
        assert lengths[0] == lengths[1] == lengths[2]


def test_what_was_measured_is_concluded_drawn_and_stated_on_the_page(
    played: Played, tmp_path: Path
) -> None:
    found = write(tmp_path / "sleep" / "fast", played)
    assert recorded(tmp_path) == [found]
    # a busy machine's noise may be too large for the few short runs to be seen or to be trusted
    alarms, below = found["traffic"]["false_alarms"], found["traffic"]["ratio"]["high"] < 1
    verdict = SEEN if below and alarms <= MOST_FALSE else TOO_CLOSE
    assert found["traffic"]["verdict"] == verdict
    assert found["traffic"]["ratio"]["value"] < 0.8
    assert alarms <= 0.2
    picture = (tmp_path / "sleep" / "fast" / "picture.svg").read_text()
    assert picture.startswith("<svg")
    assert ">E2E<" in picture, "it shows single requests, not their mean"
    itself = ratio(found["traffic"], "control")
    for words in (
        verdict.upper(), "smallest visible effect", "resampled repeats", "requests/s",
        f"slow / itself: {itself};",
    ):  # fmt: skip
        assert words in as_text(found)
    assert itself != ratio(found["traffic"])
    assert ("below 1" in found["traffic"]["reason"]) == below
    assert "fast" in summary([found]).as_text()


def test_a_policy_is_put_to_each_claim_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["mine:Policy", "--as", "srpt,vtc", "--out", str(tmp_path), "--", "--no-such-option"]
    assert main(given) == 1
    told = capsys.readouterr().err
    assert told.index("mine:Policy-as-srpt, embedded") < told.index("mine:Policy-as-vtc, embedded")


def test_every_claim_names_a_metric_that_exists() -> None:
    assert {claim.metric for claim in CLAIMS.values()} <= METRICS.keys()


def test_the_page_on_policies_shows_a_claim_with_every_key_and_names_every_metric() -> None:
    page = (ROOT / "docs" / "write-a-policy.md").read_text()
    (table,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    given = tomllib.loads(table)["mine"]
    assert {*given} | {"policy"} == {f.name for f in fields(Claim)} - {"traffic", "calm"} | {
        "flows", "load", "arrivals", "calm_flows", "calm_load",
    }  # fmt: skip
    assert {key for flow in given["flows"] for key in flow} == {f.name for f in fields(Flow)}
    claim = stated("mine", given)
    assert claim.metric in METRICS
    for traffic in (claim.traffic, claim.calm):
        assert len(open_loop(traffic, Speed(20, 0.3, 0.01), 50, 0).requests) > 40
    metrics = page[page.index("`metric` is one of") : page.index("is the\nplace for another")]
    assert {*re.findall(r"`(\w+)`", metrics)} == {"metric", "user", *METRICS}


def test_the_page_states_what_was_recorded_of_every_claim() -> None:
    """After a new recording this prints the words to copy."""
    page = " ".join((ROOT / "docs" / "policies.md").read_text().split())
    for one in (found := recorded(RECORDED)):
        traffic, calm = one["traffic"], one["calm"]
        words = (
            f"{one['model']} **{ratio(traffic)}, {traffic['verdict']}** (smallest visible effect "
            f"{smallest(one, 'traffic')}); calm {ratio(calm)}, {calm['verdict']}."
        )
        passage = page[page.index(f"![{one['policy']} beside {one['baseline']}](") :]
        assert words in passage[: passage.find("![", 1)]
    assert {one["policy"] for one in found} == {*CLAIMS}
