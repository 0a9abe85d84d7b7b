"""`python -m tests.runtime.linear.sharing RANK RENDEZVOUS FOLDER`: one of two ranks that choose the
kernels of their layers, kept in FOLDER; rank 1 is on a machine that has none of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import kernels.choice
import runtime.linear.choice
import runtime.linear.layers
from models.gpt2 import GPT, GPTConfig
from models.part import Part
from runtime.linear.choice import pack_linears
from runtime.shards import join


def main(rank: str, rendezvous: str, folder: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernels.choice, "cache_folder", lambda: Path(folder))
        if rank == "1":
            patched.setattr(runtime.linear.layers, "linear_kernel", lambda _: None)
        network = GPT(GPTConfig(vocab_size=50, context=8, n_layer=1, n_head=2, n_embd=32))
        join(rendezvous, Part(int(rank), 2), torch.device("cpu"))
        print(json.dumps(pack_linears(network.requires_grad_(False))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
