"""FlashInfer's decode attention and vLLM's engine beside ours, where they are installed.

<https://docs.flashinfer.ai/api/attention.html>, <https://docs.vllm.ai/en/latest/api/>
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.bare import POLICY_OF, run_bare
from benchmarks.on_gpu.points import LeftOut, Peer, Point
from benchmarks.on_gpu.timing import timed
from benchmarks.on_gpu.work import Models, Options
from models.gpt2 import GPTConfig

Emit = Callable[[Point], None]
LIMIT = 64  # rows, or the batch limit
WORKSPACE_BYTES = 128 * 2**20


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def flashinfer(options: Options, emit: Emit) -> None:
    """Decode attention of `LIMIT` rows of the model's heads: microseconds a call."""
    version = _version("flashinfer-python")
    if version is None:
        emit(LeftOut("FlashInfer", "not installed"))
        return
    try:
        emit(_decode_attention(options, version))
    except Exception as error:
        emit(LeftOut("FlashInfer", f"{type(error).__name__}: {error}"))


def _decode_attention(options: Options, version: str) -> Peer:
    import flashinfer as theirs  # type: ignore[import-not-found]

    from kernels.gpu.attention import attend

    config, context = options.config, options.contexts[-1]
    device, heads, dim, size = options.device, config.n_head, config.head_dim, 16
    pages = -(-context // size)
    q, k, v = torch.randn(3, LIMIT, heads, dim, device=device, dtype=options.dtype)
    cache = torch.randn(LIMIT * pages, 2, size, heads, dim, device=device, dtype=options.dtype)
    keys, values = cache.unbind(1)
    keys, values = keys.contiguous(), values.contiguous()
    tables = torch.randperm(LIMIT * pages, device=device).int().view(LIMIT, pages)
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper = theirs.BatchDecodeWithPagedKVCacheWrapper(space, "NHD")
    wrapper.plan(
        torch.arange(0, LIMIT + 1, device=device).int() * pages,
        tables.flatten(),
        torch.full((LIMIT,), (context - 1) % size + 1, device=device).int(),
        heads, heads, dim, size, q_data_type=options.dtype, kv_data_type=options.dtype,
    )  # fmt: skip
    rows = torch.tensor([[i, 1, context] for i in range(LIMIT)], device=device).int()
    tiles = torch.tensor([[i, 0] for i in range(LIMIT)], device=device).int()
    last = (context - 1) // size
    slots = tables[:, last].long() * size + (context - 1) % size  # ours stores the newest key, too

    def ours() -> None:
        attend(q, k, v, keys, values, slots, rows, tables, tiles, LIMIT, context)

    ours()
    wrapper.run(q, cache)
    found = [min(timed(call, device, 50).wall_s) for call in (lambda: wrapper.run(q, cache), ours)]
    of = f"decode attention, {LIMIT} rows of {context} tokens, us"
    return Peer("FlashInfer", version, of, found[0] * 1e6, found[1] * 1e6)


def vllm(options: Options, emit: Emit) -> None:
    """The mixed work at a batch limit of `LIMIT`: output tokens a second."""
    version = _version("vllm")
    if version is None:
        emit(LeftOut("vLLM", "not installed"))
        return
    try:
        emit(_generate(options, version))
    except Exception as error:
        emit(LeftOut("vLLM", f"{type(error).__name__}: {error}"))


def _generate(options: Options, version: str) -> Peer:
    models = Models(options)
    work = options.jobs(options.config.vocab_size, LIMIT, equal=False)
    model = models.get("dynamic", graphs=options.kernel)
    own = [
        run_bare(model, POLICY_OF["dynamic"](), "dynamic", work, LIMIT, lookahead=1).tokens_per_s
        for _ in range(2)  # the first one warms
    ][-1]
    del model, models
    gc.collect()  # models and their graphs refer to each other
    torch.cuda.empty_cache()

    from vllm import LLM, SamplingParams, TokensPrompt

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_config(options.config)))
        engine = LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, dtype=options.dtype_name,
            max_num_seqs=LIMIT, enable_prefix_caching=False, gpu_memory_utilization=0.5,
        )  # fmt: skip
    prompts = [TokensPrompt(prompt_token_ids=job.prompt) for job in work]
    sampling = [
        SamplingParams(
            temperature=0, max_tokens=job.output_tokens, ignore_eos=True, detokenize=False
        )
        for job in work
    ]
    for _ in range(2):
        start_s = time.perf_counter()
        answers = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start_s
    tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    return Peer("vLLM", version, f"mixed lengths at {LIMIT}, tokens/s", tokens / seconds, own)


def _config(config: GPTConfig) -> dict[str, object]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
