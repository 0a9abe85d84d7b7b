"""The engine over a remote model: the same tokens, and errors that mean what they mean locally."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batching import BatchingManager
from engine.inference import Inference
from model_server.remote.model import RemoteModel
from model_server.remote.session import (
    NotYetError,
    RemoteOptions,
    ShardsDivergedError,
    begin,
    reachable,
)
from model_server.serving import service
from model_server.wire import messages
from model_server.wire import model_pb2 as wire
from model_server.wire.access import Access
from seams import DeviceMemoryError, LoadError, ModelLostError, Opening, Sampling, Step
from tests.batching.modes import MODES, Mode
from tests.batching.virtual import Records, drive
from tests.model_server.served import Served, connected, served, stub, unix
from tests.support.hash_model import HashModel
from tests.support.hashed import reference, reference_logprob
from tests.support.process import eventually, free_port

WORK = [(list(range(1, 2 + 3 * n)), 3 + n, n % 3) for n in range(6)]
ASKED = [(prompt, tokens, Sampling(seed=seed, logprobs=1)) for prompt, tokens, seed in WORK]


def run(model, mode: Mode, work) -> list[Inference]:  # type: ignore[no-untyped-def]
    manager = BatchingManager(
        mode.policy(0.0), [Records()], max_batch_size=4, max_waiting=100, lookahead=1
    )
    manager.serve(model, mode.ledger(model.num_blocks, model.block_tokens))
    inferences = [Inference(prompt, tokens, sampling, 0.0) for prompt, tokens, sampling in work]
    for inference in inferences:
        manager.enqueue(inference)
    manager.drain()
    drive(manager, mode.lay_out, lambda: 0.0)
    assert manager.memory.used == 0
    return inferences


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_mode_gives_the_tokens_of_a_request_alone_and_one_that_cannot_be_sent_fails_alone(
    mode: Mode, tmp_path: Path
) -> None:
    """Twelve of them, among others: more than the failed iterations that end a server."""
    name = mode.name.partition(",")[0]
    poison = Sampling(seed=2**64)
    with (
        served(HashModel(block_tokens=4), unix(tmp_path), mode=name) as server,
        connected(server.address, mode=name) as model,
    ):
        mixed = [one for sent in ASKED for one in (([9, sent[1]], 3, poison), sent)]
        last = [(prompt, 2, poison) for prompt, *_ in WORK]
        done = run(model, mode, [*mixed, *last])
        calls = server.calls.take()
    assert [verb for verb, _ in calls[:4]] == ["ServiceDiscovery", "Info", "ClearCache", "Warmup"]
    opened = [
        messages.read_opening(new).id
        for verb, call in calls
        if verb == "Open"
        for new in call.openings
    ]
    iterations = [call for verb, call in calls if verb == "Advance"]
    assert len(opened) == len(WORK)
    assert len(iterations) == server.model.iterations, "each takes one call"
    released = [id for call in iterations for id in call.released]
    last_ids = {step.id for call in iterations[-2:] for step in messages.read_steps(call)}
    assert set(released) >= set(opened) - last_ids
    for inference in done:
        prompt = inference.ids[: inference.prompt_tokens]
        if inference.sampling is poison:
            assert inference.record is not None
            assert inference.record.end == "failed"
            assert "the model refuses the request" in str(inference.error)
            assert inference.ids == prompt
        else:
            expected = reference(prompt, inference.max_tokens, inference.sampling.seed)
            assert inference.ids == prompt + expected
            first = reference_logprob(prompt, expected[0])
            assert inference.logprobs[0].logprob == first


def one_step(model) -> list[int]:  # type: ignore[no-untyped-def]
    model.open([Opening(0, [1, 2, 3], 3, Sampling())])
    outcome = model.start([Step(0, 0, 3, True, range(3))], ()).result()
    return list(outcome.tokens[0])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"fail_on": {1}}, RuntimeError),
        ({"fail_on": {1}, "fails_late": False}, RuntimeError),
        ({"max_rows": 0}, DeviceMemoryError),
        ({"lost_from": 1}, ModelLostError),
    ],
)
def test_a_model_that_fails_fails_as_if_it_were_here(fault, error, tmp_path: Path) -> None:
    with served(HashModel(**fault), unix(tmp_path)) as server:
        with connected(server.address) as model:
            with pytest.raises(error):
                one_step(model)
            if error is RuntimeError:  # which harms no later iteration
                assert one_step(model) == reference([1, 2, 3], 1, seed=0)
        assert bool(server.failures) == (error is ModelLostError)  # only then does its process end


@contextmanager
def two_ranks(
    folder: Path, *models: HashModel
) -> Iterator[tuple[RemoteModel, list[Served], list[str]]]:
    addresses = [unix(folder, f"rank-{rank}") for rank in range(2)]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(served(model, address, addresses=addresses))
            for model, address in zip(models, addresses, strict=True)
        ]
        yield stack.enter_context(connected(addresses[0])), servers, addresses


def test_every_shard_receives_everything_and_one_answers_unless_they_draw_different_tokens(
    tmp_path: Path,
) -> None:
    shard = HashModel(budget=80)
    shard.info = replace(shard.info, unused_gpu="why")
    with two_ranks(tmp_path, HashModel(budget=100), shard) as (model, servers, addresses):
        assert model.num_blocks == 80  # what all of them have
        assert (model.info.shards, model.info.batch_invariant) == (2, True)
        assert model.info.unused_gpu == f"rank 1 ({addresses[1]}): why"
        assert one_step(model) == reference([1, 2, 3], 1, seed=0)
        first, second = (server.calls.take() for server in servers)
        assert first == [("ServiceDiscovery", wire.Nothing()), *second]
        shard.vocab_size = 2  # its tokens are other ones from here on
        with pytest.raises(ShardsDivergedError, match="the ranks drew different tokens"):
            one_step(model)


def test_a_shard_that_fails_takes_the_iteration_of_all_with_it(tmp_path: Path) -> None:
    """The other ranks would wait in a collective for it, and end to be restarted with it."""
    with two_ranks(tmp_path, HashModel(), HashModel(fail_on={1})) as (model, servers, _):
        with pytest.raises(ModelLostError, match=r"rank 1 .* fails on request"):
            one_step(model)
        for server in servers:
            eventually(lambda own=server: own.failures, "its end")  # type: ignore[misc]


def test_a_model_serves_one_server_at_a_time_and_another_when_that_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(HashModel(), unix(tmp_path)) as server, connected(server.address) as first:
        with pytest.raises(NotYetError, match="another server uses this model"):
            begin(first.options, lambda _: None)
        # a second warm-up would write over the first one's blocks
        assert [verb for verb, _ in server.calls.take()].count("Warmup") == 1
        assert one_step(first) == reference([1, 2, 3], 1, seed=0)
        monkeypatch.setattr(service, "LEASE_S", 0.0)
        with connected(server.address) as second:
            assert one_step(second) == reference([1, 2, 3], 1, seed=0)
        with pytest.raises(ModelLostError, match=r"is over|has forgotten the session"):
            one_step(first)  # its late work is refused


def test_calls_are_executed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with served(HashModel(), unix(tmp_path)) as server:
        ask = stub(server.address)
        ask.ClearCache(wire.Session(session=1))
        opening = messages.opening(Opening(0, [1, 2], 2, Sampling()))
        steps = [Step(0, 0, 2, True, range(8))], [Step(0, 2, 1, True, ())]
        late = ask.Advance.future(messages.iteration(1, 2, steps[1], ()))
        early = ask.Advance.future(messages.iteration(1, 1, steps[0], ()))
        ask.Open(wire.Openings(session=1, number=0, openings=[opening]))
        tokens = [
            token
            for call in (early, late)
            for (token,) in messages.read_outcome(call.result()).tokens
        ]
        assert tokens == reference([1, 2], 2, seed=0)


def test_a_server_and_a_model_server_that_do_not_match_say_so(tmp_path: Path) -> None:
    with served(HashModel(), unix(tmp_path)) as server:
        for name, value in (("model", "gpt2"), ("mode", "static"), ("max_batch_size", 65)):
            asked: Any = {name: value}
            with (
                pytest.raises(LoadError, match=f"{value}"),
                connected(server.address, **asked),
            ):
                pass


def test_a_network_address_needs_a_secret() -> None:
    with pytest.raises(LoadError, match="needs a token"):
        Access().check("127.0.0.1:5000")
    with pytest.raises(LoadError, match="unix:/PATH, or HOST:PORT"):
        Access("secret").check("somewhere")


def test_shards_that_listen_everywhere_are_reached_where_the_first_was_found() -> None:
    assert reachable("0.0.0.0:8601", "gpu-1:8600") == "gpu-1:8601"
    assert reachable("gpu-2:8600", "gpu-1:8600") == "gpu-2:8600"


def certificates(folder: Path, name: str) -> str:
    """A folder for --model-tls, for 127.0.0.1, of an authority of its own."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=made, check=True, capture_output=True)

    made = folder / name
    made.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    new = ("req", "-x509", *key, "-days", "2")
    openssl(*new, "-subj", f"/CN={name}", "-keyout", "ca.key", "-out", "ca.pem")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl(*new, *signed, "-subj", "/CN=shard", "-keyout", "key.pem", "-out", "cert.pem")
    return str(made)


def test_only_clients_with_a_certificate_of_the_same_authority_or_the_token_are_served(
    tmp_path: Path,
) -> None:
    ours, others = (Access(tls=certificates(tmp_path, name)) for name in ("ours", "others"))
    secret, guess = Access("secret"), Access("guess")
    for access, strangers in ((ours, (others, secret)), (secret, (guess,))):
        address = f"127.0.0.1:{free_port()}"
        with served(HashModel(), address, access=access):
            with connected(address, access=access) as model:
                assert one_step(model) == reference([1, 2, 3], 1, seed=0)
            for stranger in strangers:
                options = RemoteOptions(address, stranger, "hash", "dynamic", 8, 5.0, 5.0)
                refused = "UNAVAILABLE" if access is ours else "token is missing or wrong"
                with pytest.raises((NotYetError, LoadError), match=refused):
                    begin(options, lambda _: None)
