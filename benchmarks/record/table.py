"""The recordings, in the order in which they are made. Add yours here.

All regular ones together take at most MOST_MINUTES on two cores, so that no change has to wait for
its figures. What does not fit is rare: it is made seldom, and the list says of which commit it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LOOP = (
    "batching.py", "embedded", "engine", "generate", "kernels", "model.py", "models", "records.py",
    "runtime", "scheduling",
)  # fmt: skip
SERVER = (
    *LOOP,
    "api",
    "app.py",
    "loading.py",
    "serving",
    "telemetry",
    "text",
    "web",
)
MOST_MINUTES = 50
COMPARE = (*SERVER, "client", "compare.sh")
RAW = ("runs.jsonl.gz", "workloads")
PYTHON = "{python} -m "


@dataclass(frozen=True, slots=True)
class Recording:
    """One command and its results.

    ``command`` contains ``{python}`` and ``{out}``, an empty folder, whose files move to
    ``folder``, except for those named in ``drops``, which can be made again or are large. With
    ``printed`` its output is also kept, under that name. The age of the file
    ``shows`` is the age of the recording; ``measures`` is the code that it measures. ``needs`` are
    keys of NEEDS in ``__main__.py``."""

    name: str
    minutes: float
    command: str
    folder: str
    shows: str
    measures: tuple[str, ...]
    needs: tuple[str, ...] = ()
    printed: str | None = None
    drops: tuple[str, ...] = ()
    rare: bool = False


def _rare(recording: Recording) -> Recording:
    return replace(recording, rare=True)


def _compare(
    name: str, minutes: float, options: str = "", drops: tuple[str, ...] = ("report.html", *RAW)
) -> Recording:
    return Recording(
        name, minutes, f"./compare.sh --out {{out}} {options}", f"results/reference-{name}",
        "summary.json", COMPARE, drops=("requests.csv", *drops),
    )  # fmt: skip


def _bench(
    name: str,
    minutes: float,
    module: str,
    folder: str,
    shows: str,
    measures: tuple[str, ...],
    *needs: str,
) -> Recording:
    command = f"{PYTHON}benchmarks.{module} --out {{out}}"
    return Recording(name, minutes, command, folder, shows, measures, needs)


def _peers(work: str, minutes: float, options: str) -> Recording:
    """Beside the two peers that decode fastest."""
    return _beside(work, minutes, f"""--peers "ours, nobatch" "OpenVINO GenAI" vLLM {options}""")


def _beside(work: str, minutes: float, options: str) -> Recording:
    name = f"peers-{work}"
    return _rare(_bench(name, minutes, f"peers {options}", _PEERS, f"{name}.json", LOOP, "peers"))


def _smollm2(work: str, minutes: float, options: str = "") -> Recording:
    """llama.cpp reads the same file; in other precisions it takes minutes a round."""
    return _decoder(
        "smollm2", "file", work, minutes, f"{options} --peers {_FASTEST} llama.cpp=file"
    )


def _qwen3(work: str, minutes: float, options: str) -> Recording:
    return _decoder("random:qwen3-0.6b", "q4_0", work, minutes, options)


def _decoder(model: str, file: str, work: str, minutes: float, options: str) -> Recording:
    short = model.replace(":", "-")
    name = "-".join(filter(None, [short, work, "bfloat16", "int8", file]))
    return _beside(name, minutes, f"--model {model} --dtypes bfloat16 int8 {file} {options}")


_FASTEST = '"OpenVINO GenAI"'  # of the peers, in batches


def _with_amx(recording: Recording) -> Recording:
    """The same command on a processor with AMX."""
    return replace(
        recording, name=f"{recording.name}-amx", folder=_AMX, needs=(*recording.needs, "amx")
    )


_HTTP, _DEFERRED = "results/reference-http", "results/reference-deferred"
_PEERS = "results/reference-peers"
_STORE, _MODES = "results/reference-store", "results/reference-modes"
_AMX = "results/reference-amx"
_HOSTILE = "results/reference-hostile"
_LONG_PROMPTS = "results/reference-long-prompts"
_KERNELS, _PRODUCTS = "results/reference-kernels", ("runtime/linear", "kernels")
_STORED = ("deferred", "benchmarks/store")

TABLE: tuple[Recording, ...] = (
    _compare("embedded", 5, drops=RAW),
    _rare(_compare("embedded-again", 5)),
    _rare(_compare("embedded-low", 5, "--arrivals plan:low")),
    _rare(_compare("embedded-medium", 5, "--arrivals plan:medium")),
    _rare(_compare("embedded-high", 5, "--arrivals plan:high")),
    _rare(_compare(
        "gpt2-medium", 14, "--model random:gpt2-medium --budget-s 900 -- --dtype bfloat16",
        drops=("report.html",),
    )),
    _rare(Recording(
        "distributions", 5, "./compare.sh --distributions", "results/reference-distributions",
        "distributions.txt", COMPARE, printed="distributions.txt",
    )),
    *(
        # then: python -m client.claims --out results/reference-claims --page docs/policies.md
        _rare(Recording(
            f"claims-{model}", minutes,
            f"{PYTHON}client.claims --all --model {model} --without-runs --out {{out}}",
            "results/reference-claims", f"{model}/claims.txt", COMPARE,
        ))
        for model, minutes in (("embedded", 25), ("smollm2", 33))
    ),
    _rare(_bench(
        "overload", 8, "overload --rounds 12", "results/reference-overload", "overload.json",
        (*SERVER, "benchmarks/overload"),
    )),
    Recording(
        "one-run", 1, f"{PYTHON}benchmarks.client.one_run --out {{out}}", "results/reference-run",
        "summary.json", COMPARE, drops=("requests.csv", "tokens.csv"),
    ),
    _rare(_bench(
        "modes", 13, "modes --http --dtypes bfloat16", _MODES, "modes.json", LOOP, "development",
    )),
    _peers("bfloat16", 7, "--dtypes bfloat16"),
    _peers("float32", 10, "--dtypes float32"),
    _peers("int8", 6, "--dtypes int8"),
    _peers("prefill-bfloat16", 8, "--work prefill --dtypes bfloat16"),
    _peers("prefill-float32", 11, "--work prefill --dtypes float32"),
    _peers("mixed-bfloat16", 7, "--work mixed --dtypes bfloat16"),
    _peers("mixed-float32", 11, "--work mixed --dtypes float32"),
    _peers("sampled-bfloat16", 9, "--sampled --dtypes bfloat16"),
    _peers("sampled-float32", 12, "--sampled --dtypes float32"),
    _peers(
        "single-float32-bfloat16-int8", 11, "--work single --dtypes float32 bfloat16 int8"
    ),
    _smollm2("", 10),
    _smollm2("mixed", 6, "--work mixed"),
    _smollm2("sampled", 11, "--sampled"),
    _smollm2("prefill", 8, "--work prefill"),
    _smollm2("single", 4, "--work single"),
    _with_amx(_smollm2("", 9)),
    _with_amx(_smollm2("prefill", 7, "--work prefill")),
    _with_amx(_smollm2("single", 4, "--work single")),
    # a batch takes llama.cpp half an hour in three rounds
    _qwen3("", 12, f"--peers {_FASTEST}"),
    _qwen3("mixed", 10, f"--work mixed --peers {_FASTEST}"),
    _qwen3("sampled", 12, f"--sampled --peers {_FASTEST}"),
    _qwen3("prefill", 12, f"--work prefill --peers {_FASTEST}"),
    _qwen3("single", 8, f"--work single --peers {_FASTEST} llama.cpp=q4_0"),
    _rare(_bench("http-peers", 11, "http.peers", _HTTP, "http-peers.json", SERVER, "peers")),
    _bench("streams", 6, "http --streams 512", _HTTP, "streams-random-gpt2.json", SERVER),
    _bench(
        "streams-embedded", 1, "http --streams 512 --model embedded", _HTTP,
        "streams-embedded.json", SERVER,
    ),
    _bench(
        "long-prompts", 4, "long_prompts --curve docs/img/long-prompts.png",
        _LONG_PROMPTS, "long-prompts-embedded.json", LOOP, "development",
    ),
    _rare(_bench(
        "long-prompts-smollm2", 4, "long_prompts --model smollm2 --dtype auto --rounds 3",
        _LONG_PROMPTS, "long-prompts-smollm2.json", LOOP,
    )),
    _rare(_bench("deferred", 20, "deferred", _DEFERRED, "deferred.json", LOOP)),
    _rare(_bench(
        "sampling", 5, "kernels.sampling --dtypes bfloat16 --rounds 9",
        "results/reference-sampling", "sampling.json", LOOP,
    )),
    _bench("linear", 3, "kernels.linear", _KERNELS, "linear.json", _PRODUCTS),
    _rare(_with_amx(_bench(
        "linear", 1, "kernels.linear --precisions bfloat16 q8_0 q4_0 q4_1 --rows 1 8 16 64 256",
        _AMX, "linear.json", _PRODUCTS,
    ))),
    _bench(
        "roofline", 2, "kernels.roofline --picture docs/img/kernels-roofline.png", _KERNELS,
        "roofline.json", _PRODUCTS, "development",
    ),
    _rare(_bench(
        "speculation", 4, "speculation --picture docs/img/speculation.png",
        "results/reference-speculation", "speculation-q4_1.json", LOOP,
    )),
    _rare(_bench(
        "prefix", 16, "prefix --dtype bfloat16", "results/reference-prefix",
        "prefix-bfloat16.json", LOOP,
    )),
    _bench(
        "prefix-float32", 1, "prefix --only ttft", "results/reference-prefix",
        "prefix-float32.json", LOOP,
    ),
    _rare(_bench("masks", 8, "masks", "results/reference-masks", "masks.json", LOOP)),
    Recording(
        "masks-picture", 1, f"{PYTHON}benchmarks.masks --picture {{out}}", "docs/img", "masks.png",
        ("benchmarks/masks.py",),
    ),
    _rare(_bench("hostile", 6, "hostile.grammars", _HOSTILE, "hostile.json", LOOP)),
    _rare(_bench(
        "neighbours", 6, "hostile", _HOSTILE, "neighbours.json",
        (*SERVER, "router", "benchmarks/hostile"),
    )),
    _bench(
        "json-schema", 1, "json_schema", "results/reference-json-schema", "json-schema.md",
        ("runtime/grammar", "benchmarks/json_schema.py"), "development",
    ),
    _bench("step", 2, "kernels.step", "results/reference-step", "step.json", LOOP),
    _bench("planning", 2, "planning", "results/reference-planning", "planning.json", LOOP),
    _bench(
        "step-prefill", 1, "kernels.step --rows 4 --tokens 512 --past 0", "results/reference-step",
        "prefill.json", LOOP,
    ),
    Recording(
        "step-picture", 1, f"{PYTHON}benchmarks.kernels.step_picture --out {{out}}", "docs/img",
        "step.png", ("results/reference-step",), ("development",),
    ),
    # it writes watch/page/recorded/ itself
    Recording(
        "film", 1, f"{PYTHON}benchmarks.pictures.recorded --film {{out}}/film.svg", "docs/img",
        "film.svg", (*LOOP, "watch/film.py"),
    ),
    _rare(_bench(
        "remote", 10, "remote", "results/reference-remote", "remote.json", (*LOOP, "model_server"),
        "development",
    )),
    _bench(
        "watching", 2, "watching", "results/reference-watching", "watching.json",
        (*LOOP, "telemetry", "watch/hub.py", "watch/frames.py"),
    ),
    _bench(
        "watching-pictures", 1, "watching.picture", "docs/img", "watch-live.png",
        (*SERVER, "watch"), "development", "chromium",
    ),
    _bench("store", 2, "store", _STORE, "store-sqlite.json", _STORED),
    _bench("store-history", 2, "store.history", _STORE, "history-sqlite.json", _STORED),
    _bench(
        "client", 2, "client.speed --self-test", "results/reference-client", "speed.json",
        ("client",),
    ),
    _rare(_bench(
        "router", 4, "router --litellm --tib build/text-inference-batcher",
        "results/reference-router", "router.json", ("router", "benchmarks/router"),
        "text-inference-batcher", "wrk",
    )),
    _bench("pictures", 2, "pictures", "docs/img", "modes.png", LOOP, "development"),
    _bench(
        "memory-picture", 1, "prefix.picture", "docs/img", "memory.png", LOOP, "development",
    ),
    _bench(
        "report-pictures", 1, "client.screens", "docs/img", "comparing-report.png",
        (
            "client/report", "results/reference-embedded", "results/reference-run",
        ), "development", "chromium",
    ),
    _bench(
        "load-pictures", 1, "client.pictures", "docs/img", "load-shapes.png",
        ("client/workloads", "client/report/pictures/shape.py"), "development",
    ),
)  # fmt: skip
