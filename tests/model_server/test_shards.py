"""The command, with two real shards of the embedded model: they compute what one process does."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from generate.modes import MODES
from model import LoadOptions, load_model
from model_server.remote.model import RemoteModel
from seams import Constraint, Model, Sampling, TokenLogprobs
from serving.config import Config
from tests.bare import Bare
from tests.model_server.served import connected, unix
from tests.support.process import environment, spawned
from text.vocabulary import load_tokenizer

PROMPT = list(range(5, 45))
TOKENS = 24


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteModel]:
    folder = tmp_path_factory.mktemp("group")
    address = unix(folder)
    options = ["--shards", "2", "--speculate", "4", "--listen", address]
    command = [sys.executable, "-m", "model_server", "serve", "embedded", *options]
    with (
        spawned(folder, Config("dynamic"), command, environment()),
        connected(address, model="embedded", max_batch_size=8) as model,
    ):
        yield model


def generate(model: Model, sampling: Sampling) -> tuple[list[int], list[TokenLogprobs]]:
    bare = Bare(model, MODES["dynamic"].lay_out)
    (row,) = bare.open([PROMPT], TOKENS, [sampling])
    scores = [score for _ in range(TOKENS) for score in bare.advance([row]).logprobs[0]]
    return row.ids, scores


def test_two_shards_give_the_logits_and_the_tokens_of_one(remote: RemoteModel) -> None:
    local = load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, 8))
    sampling = Sampling(seed=3, temperature=1.0, logprobs=50)
    ids, scores = generate(remote, sampling)
    expected_ids, expected = generate(local, sampling)
    assert (remote.info.shards, remote.info.parameters) == (2, local.info.parameters)
    assert ids == expected_ids
    for score, other in zip(scores, expected, strict=True):
        assert score.logprob == pytest.approx(other.logprob, abs=1e-4)
        found, wanted = dict(score.top), dict(other.top)
        for token in found.keys() & wanted.keys():
            assert found[token] == pytest.approx(wanted[token], abs=1e-4)


def test_each_rank_computes_masks_forced_tokens_and_accepted_drafts_by_itself(
    remote: RemoteModel,
) -> None:
    """With drafts as without, to the last bit; a grammar that is wrong fails its row alone."""
    assert remote.info.speculate == 4
    if not remote.info.batch_invariant:
        pytest.skip("no variant of the linear layers is batch invariant here")
    tokenizer = load_tokenizer("embedded")
    prompt = tokenizer.encode("abab abab abab ")
    right, wrong = 'start: /[ab ]{30,60}/ "and a fixed end"', "start: missing"
    constraints = [Constraint("lark", grammar) for grammar in (right, wrong)]
    for logprobs in (None, 2):
        asked = [Sampling(temperature=0, constraint=c, logprobs=logprobs) for c in constraints]
        found = []
        for drafts in (0, 4):
            bare, accepted = Bare(remote, MODES["dynamic"].lay_out), 0
            row, refused = bare.open([prompt, prompt], 80, asked)
            assert "missing" in bare.advance([row, refused]).failed[1]
            while row.ids[-1] not in tokenizer.end_ids:
                outcome = bare.advance([row], drafts=[drafts])
                accepted += sum(of.accepted for of in outcome.drafts.values())
            assert (accepted > 0) == (drafts > 0)
            text = b"".join(map(tokenizer.token_bytes, row.ids[len(prompt) : -1]))
            assert re.fullmatch("[ab ]{30,60}and a fixed end", text.decode())
            found.append(row.ids)
        assert found[0] == found[1]
