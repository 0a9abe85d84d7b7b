"""`python -m tests.model_server.hash_shard ADDRESS RANK ADDRESSES`: a shard with the hash model,
for a group that starts it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from model_server.serving.process import ORPHAN_S, end_with_parent, fail, serve
from model_server.serving.service import ModelService
from model_server.serving.worker import Worker
from model_server.shards import Shard
from model_server.wire.access import Access
from tests.support.hash_model import HashModel

ROOT = Path(__file__).resolve().parents[2]
STEP_S = 0.005  # of an iteration, so that deaths find some in flight
BLOCK_TOKENS = 4


def hash_shards(addresses: list[str]) -> list[Shard]:
    command = [sys.executable, "-m", "tests.model_server.hash_shard"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return [
        Shard([*command, address, str(rank), ",".join(addresses)], environment, address)
        for rank, address in enumerate(addresses)
    ]


def main(address: str, rank: str, addresses: str) -> None:
    logging.basicConfig(level="INFO")
    service = ModelService(Worker(), "dynamic", 64, addresses.split(","), int(rank), fail)
    model = HashModel(step_s=STEP_S, block_tokens=BLOCK_TOKENS)
    end_with_parent(ORPHAN_S)
    os._exit(serve(service, lambda: model, address, Access()))


if __name__ == "__main__":
    main(*sys.argv[1:])
