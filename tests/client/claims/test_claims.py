"""A claim from servers to the page: played, concluded, drawn, written, and made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from client.claims.__main__ import main
from client.claims.catalogue import CLAIMS, Claim
from client.claims.figures import METRICS
from client.claims.page import filled
from client.claims.pictures import PICTURES
from client.claims.play import BLOCK, Played, play
from client.claims.record import again, recorded, write
from client.claims.report import as_text, summary
from client.claims.verdict import LEAST_TRUE, MOST_FALSE, SEEN, TOO_CLOSE
from client.load.raw import RawError
from client.load.servers.system import System
from client.workloads.traffic import Flow, Traffic
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


def test_what_was_written_is_concluded_again_from_the_runs(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLAIMS, "fast", played.claim)
    found = write(tmp_path / "sleep" / "fast", played, None)
    assert again(tmp_path / "sleep" / "fast") == found
    assert [one["policy"] for one in recorded(tmp_path)] == ["fast"]
    # a busy machine's noise may be too large for the few short runs to be seen or to be trusted
    repeats, below = found["traffic"]["trust"], found["traffic"]["ratio"]["high"] < 1
    believed = repeats["nothing"] <= MOST_FALSE and repeats["planted"] >= LEAST_TRUE
    verdict = SEEN if below and believed else TOO_CLOSE
    assert found["traffic"]["verdict"] == verdict
    assert found["traffic"]["ratio"]["value"] < 0.6
    assert repeats["nothing"] <= 0.2
    assert (tmp_path / "sleep" / "fast" / "picture.svg").read_text().startswith("<svg")
    for words in (verdict.upper(), "smallest visible effect", "baseline against itself"):
        assert words in as_text(found)
    assert ("below 1" in found["traffic"]["reason"]) == below
    assert "fast" in summary([found]).as_text()
    text = filled("<!-- measured: fast -->\nold\n<!-- end -->", [found], "results/x")
    assert "results/x/sleep/fast/picture.svg" in text
    assert f", {verdict}** (smallest visible effect" in text
    assert "old" not in text


def test_every_claim_names_a_metric_and_a_picture_that_exist() -> None:
    for claim in CLAIMS.values():
        assert claim.metric in METRICS
        assert claim.picture in PICTURES
        assert claim.baseline in ("orca", "stall-free", "vtc")


def test_runs_that_are_not_there_cannot_be_concluded_again(
    played: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RawError, match=r"about\.json"):
        again(tmp_path)
    assert main(["--again", "--out", str(tmp_path)]) == 1
    write(tmp_path / "sleep" / "fast", played, "srpt")
    assert main(["vtc", "--again", "--out", str(tmp_path)]) == 1
    assert "has no runs of a claim" in (told := capsys.readouterr().err)
    assert "has no runs of vtc" in told
    assert main(["fast", "--again", "--out", str(tmp_path)]) == 0
    assert "fast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "which claims?"),
        (["vtc", "--all"], "which claims?"),
        (["nonsense"], "there is no claim about nonsense; allowed: stall-free"),
        (["vtc", "--seeds", "3"], "--seeds must be at least 4"),
        (["vtc", "--seconds", "0"], "--seconds: must be seconds > 0"),
    ],
)
def test_a_wrong_command_says_what_is_allowed(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(args)
    assert words in capsys.readouterr().err


def test_the_list_has_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(f"{name}: " in told for name in CLAIMS)


def test_the_passages_of_the_gallery_are_those_of_the_recording() -> None:
    """`python -m client.claims --out results/reference-claims --page docs/policies.md`."""
    text = (ROOT / "docs" / "policies.md").read_text()
    assert filled(text, recorded(RECORDED), "../results/reference-claims") == text
    assert all(f"<!-- measured: {name} -->" in text for name in CLAIMS)
