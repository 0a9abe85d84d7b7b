"""The recordings, in the order in which they are made. Add yours here.

All regular ones together take at most MOST_MINUTES on two cores, so that no change has to wait for
its figures. What does not fit is rare: it is made seldom, and the list says of which commit it is.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOP = (
    "batching.py", "engine", "generate", "kernels", "model.py", "models", "runtime",
    "scheduling", "seams.py",
)  # fmt: skip
SERVER = (*LOOP, "api", "app.py", "serving", "telemetry", "text", "web")
COMPARE = (*SERVER, "client", "compare.sh")
PRODUCTS = ("runtime/linear", "kernels")
MOST_MINUTES = 30
DROPPED = ("requests.csv",)  # by every recording: large, and made again at will
RAW = ("runs.jsonl.gz", "workloads")
GPT2 = '--peers "ours, nobatch" "OpenVINO GenAI" vLLM'  # the peers that decode it fastest
SMOLLM2 = '--model smollm2 --dtypes bfloat16 int8 file --peers "OpenVINO GenAI" llama.cpp=file'


@dataclass(frozen=True, slots=True)
class Recording:
    """One command and its results.

    ``command`` contains ``{python}`` and ``{out}``, an empty folder, whose files move to
    ``folder``, except for DROPPED and those named in ``drops``, which can be made again or are
    large; without ``{out}``, its output is the file. The age of the file ``shows`` is the age of
    the recording; ``measures`` is the code that it measures. ``needs`` are folders, programs
    and abilities of the processor."""

    name: str
    minutes: float
    command: str
    shows: str
    measures: tuple[str, ...]
    needs: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    rare: bool = False

    @property
    def folder(self) -> str:
        return "/".join(self.shows.split("/")[:2])

    @property
    def left(self) -> str:
        """The file ``shows`` as the command leaves it."""
        return self.shows.removeprefix(f"{self.folder}/")


def compared(name: str, minutes: float, options: str = "", *kept: str) -> Recording:
    """What `./compare.sh` leaves, its raw data only if it is kept."""
    drops = tuple(each for each in ("report.html", *RAW) if each not in kept)
    command = f"./compare.sh --out {{out}} {options}"
    shows = f"results/reference-{name}/summary.json"
    return Recording(name, minutes, command, shows, COMPARE, (), drops, rare=bool(options))


def run(
    name: str, minutes: float, module: str, shows: str, measures: tuple[str, ...], *needs: str,
    rare: bool = False,
) -> Recording:  # fmt: skip
    """A benchmark. ``shows``: below `results/reference-`, unless it is a picture."""
    shows = shows if shows.startswith("docs/") else f"results/reference-{shows}"
    command = f"{{python}} -m benchmarks.{module} --out {{out}}"
    return Recording(name, minutes, command, shows, measures, needs, rare=rare)


def claims(model: str, minutes: float) -> Recording:
    shows = f"results/reference-claims/{model}/claims.txt"
    command = "{python} -m client.claims --all --out {out} --model "
    return Recording(f"claims-{model}", minutes, command + model, shows, COMPARE, rare=True)


def peers(name: str, minutes: float, options: str, amx: bool = False) -> Recording:
    """Beside other engines; ``amx``: on a processor with AMX."""
    title, needs = f"peers-{name}", ("build/peers", *["amx_int8"] * amx)
    shows = f"{'amx' if amx else 'peers'}/{title}.json"
    return run(title + "-amx" * amx, minutes, f"peers {options}", shows, LOOP, *needs, rare=True)


TABLE: tuple[Recording, ...] = (
    compared("embedded", 5, "", "report.html"),
    compared("embedded-high", 5, "--arrivals plan:high"),
    compared(
        "gpt2-medium", 14, "--model random:gpt2-medium --budget-s 900 -- --dtype bfloat16", *RAW
    ),
    claims("embedded", 25),
    claims("smollm2", 33),
    run(
        "overload", 8, "overload --rounds 12", "overload/overload.json",
        (*SERVER, "benchmarks/overload.py"), rare=True,
    ),
    run("modes", 13, "modes --http --dtypes bfloat16", "modes/modes.json", LOOP, "ruff", rare=True),
    peers("bfloat16", 7, f"{GPT2} --dtypes bfloat16"),
    peers("int8", 6, f"{GPT2} --dtypes int8"),
    peers("prefill-bfloat16", 8, f"{GPT2} --work prefill --dtypes bfloat16"),
    peers("smollm2-bfloat16-int8-file", 10, SMOLLM2),
    peers("smollm2-prefill-bfloat16-int8-file", 8, f"--work prefill {SMOLLM2}"),
    peers("smollm2-single-bfloat16-int8-file", 4, f"--work single {SMOLLM2}"),
    peers("smollm2-bfloat16-int8-file", 9, SMOLLM2, amx=True),
    peers("smollm2-prefill-bfloat16-int8-file", 7, f"--work prefill {SMOLLM2}", amx=True),
    peers("smollm2-single-bfloat16-int8-file", 4, f"--work single {SMOLLM2}", amx=True),
    run("http-peers", 11, "http.peers", "http/http-peers.json", SERVER, "build/peers", rare=True),
    run(
        "streams-embedded", 1, "http --streams 512 --model embedded", "http/streams-embedded.json",
        SERVER,
    ),
    run(
        "long-prompts", 4, "long_prompts", "long-prompts/long-prompts-embedded.json", LOOP,
        rare=True,
    ),
    run("deferred", 20, "deferred", "deferred/deferred.json", LOOP, rare=True),
    run("linear", 3, "kernels.linear", "kernels/linear.json", PRODUCTS),
    run(
        "linear-amx", 1, "kernels.linear --precisions bfloat16 q8_0 q4_0 q4_1 --rows 1 8 16 64 256",
        "amx/linear.json", PRODUCTS, "amx_int8", rare=True,
    ),
    run("speculation", 4, "speculation", "speculation/speculation-q4_1.json", LOOP, rare=True),
    run("prefix", 6, "prefix --dtype bfloat16", "prefix/prefix-bfloat16.json", LOOP, rare=True),
    run(
        "neighbours", 6, "hostile", "hostile/neighbours.json",
        (*SERVER, "router", "benchmarks/hostile"), rare=True,
    ),
    run("planning", 2, "planning", "planning/planning.json", LOOP),
    Recording(
        "learn", 1, "{python} -m learn --record", "results/reference-learn/figures.json",
        (*LOOP, "learn"),
    ),
    # it writes watch/page/recorded/ itself
    Recording(
        "film", 1, "{python} -m benchmarks.pictures.recorded --film {out}/film.svg",
        "docs/img/film.svg", (*LOOP, "watch/film.py"),
    ),
    Recording(
        "client", 1, "{python} -m client.client --self-test --json",
        "results/reference-client/speed.json", ("client",),
    ),
    run(
        "router", 9, "router --rust --litellm --tib build/text-inference-batcher",
        "router/router.json", ("router", "benchmarks/router.py", "benchmarks/router_streams.py"),
        "build/text-inference-batcher", "wrk", "nginx", rare=True,
    ),
    run(
        "routing", 1, "routing", "routing/routing.json",
        ("router/rules", "benchmarks/routing.py", "scheduling/policies/orders/vtc.py"),
    ),
    run("pictures", 3, "pictures", "docs/img/rows.png",
        (*LOOP, "client/workloads")),
)  # fmt: skip
