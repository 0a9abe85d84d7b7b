"""The recordings, in the order in which they are made. Add yours here.

All regular ones together take at most MOST_MINUTES on two cores, so that no change has to wait for
its figures. What does not fit is rare: it is made seldom, and the list says of which commit it is.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOP = (
    "batching.py", "embedded", "engine", "generate", "kernels", "model.py", "models", "records.py",
    "runtime", "scheduling",
)  # fmt: skip
SERVER = (*LOOP, "api", "app.py", "loading.py", "serving", "telemetry", "text", "web")
COMPARE = (*SERVER, "client", "compare.sh")
PRODUCTS = ("runtime/linear", "kernels")
MOST_MINUTES = 30
DROPPED = ("requests.csv", "tokens.csv")  # by every recording: large, and made again at will
RAW = ("runs.jsonl.gz", "workloads")
SMOLLM2 = '--model smollm2 --dtypes bfloat16 int8 file --peers "OpenVINO GenAI" llama.cpp=file'
# a batch takes llama.cpp half an hour in three rounds
QWEN3 = '--model random:qwen3-0.6b --dtypes bfloat16 int8 q4_0 --peers "OpenVINO GenAI"'


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


def _compare(name: str, minutes: float, options: str = "", *kept: str) -> Recording:
    """What `./compare.sh` leaves, its raw data only if it is kept."""
    drops = tuple(each for each in ("report.html", *RAW) if each not in kept)
    command = f"./compare.sh --out {{out}} {options}"
    shows = f"results/reference-{name}/summary.json"
    return Recording(name, minutes, command, shows, COMPARE, (), drops, rare=bool(options))


def _bench(
    name: str, minutes: float, module: str, shows: str, measures: tuple[str, ...], *needs: str
) -> Recording:
    """``shows``: below `results/reference-`, unless it is a picture."""
    shows = shows if shows.startswith("docs/") else f"results/reference-{shows}"
    package = "" if module.startswith("client.claims") else "benchmarks."
    command = f"{{python}} -m {package}{module} --out {{out}}"
    return Recording(name, minutes, command, shows, measures, needs)


def _rare(*of: str | float | tuple[str, ...]) -> Recording:
    """As of `_bench`."""
    one = _bench(*of)  # type: ignore[arg-type]
    return Recording(
        one.name, one.minutes, one.command, one.shows, one.measures, one.needs, rare=True
    )


def _peers(name: str, minutes: float, options: str, amx: bool = False) -> Recording:
    """Beside other engines; ``amx``: on a processor with AMX."""
    folder, needs = ("amx", ("build/peers", "amx_int8")) if amx else ("peers", ("build/peers",))
    shows = f"{folder}/peers-{name}.json"
    title = f"peers-{name}{'-amx' * amx}"
    return _rare(title, minutes, f"peers {options}", shows, LOOP, *needs)


def _gpt2(name: str, minutes: float, options: str) -> Recording:
    """Beside the two peers that decode it fastest."""
    return _peers(name, minutes, f'--peers "ours, nobatch" "OpenVINO GenAI" vLLM {options}')


TABLE: tuple[Recording, ...] = (
    _compare("embedded", 5, "", "report.html"),
    _compare("embedded-high", 5, "--arrivals plan:high"),
    _compare(
        "gpt2-medium", 14, "--model random:gpt2-medium --budget-s 900 -- --dtype bfloat16", *RAW,
    ),
    Recording(
        "distributions", 5, "./compare.sh --distributions",
        "results/reference-distributions/distributions.txt", COMPARE, rare=True,
    ),
    # then: python -m client.claims --out results/reference-claims --page docs/policies.md
    _rare(
        "claims-embedded", 25, "client.claims --all --model embedded --without-runs",
        "claims/embedded/claims.txt", COMPARE,
    ),
    _rare(
        "claims-smollm2", 33, "client.claims --all --model smollm2 --without-runs",
        "claims/smollm2/claims.txt", COMPARE,
    ),
    _rare(
        "overload", 8, "overload --rounds 12", "overload/overload.json",
        (*SERVER, "benchmarks/overload.py"),
    ),
    _bench("one-run", 1, "one_run", "run/summary.json", COMPARE),
    _rare("modes", 13, "modes --http --dtypes bfloat16", "modes/modes.json", LOOP, "ruff"),
    _gpt2("bfloat16", 7, "--dtypes bfloat16"),
    _gpt2("float32", 10, "--dtypes float32"),
    _gpt2("int8", 6, "--dtypes int8"),
    _gpt2("prefill-bfloat16", 8, "--work prefill --dtypes bfloat16"),
    _gpt2("mixed-bfloat16", 7, "--work mixed --dtypes bfloat16"),
    _gpt2("single-float32-bfloat16-int8", 11, "--work single --dtypes float32 bfloat16 int8"),
    _peers("smollm2-bfloat16-int8-file", 10, SMOLLM2),
    _peers("smollm2-mixed-bfloat16-int8-file", 6, f"--work mixed {SMOLLM2}"),
    _peers("smollm2-prefill-bfloat16-int8-file", 8, f"--work prefill {SMOLLM2}"),
    _peers("smollm2-single-bfloat16-int8-file", 4, f"--work single {SMOLLM2}"),
    _peers("smollm2-bfloat16-int8-file", 9, SMOLLM2, amx=True),
    _peers("smollm2-prefill-bfloat16-int8-file", 7, f"--work prefill {SMOLLM2}", amx=True),
    _peers("smollm2-single-bfloat16-int8-file", 4, f"--work single {SMOLLM2}", amx=True),
    _peers("random-qwen3-0.6b-bfloat16-int8-q4_0", 12, QWEN3),
    _peers("random-qwen3-0.6b-prefill-bfloat16-int8-q4_0", 12, f"--work prefill {QWEN3}"),
    _peers(
        "random-qwen3-0.6b-single-bfloat16-int8-q4_0", 8, f"--work single {QWEN3} llama.cpp=q4_0",
    ),
    _rare("http-peers", 11, "http.peers", "http/http-peers.json", SERVER, "build/peers"),
    _bench(
        "streams-embedded", 1, "http --streams 512 --model embedded", "http/streams-embedded.json",
        SERVER,
    ),
    _rare(
        "long-prompts", 4, "long_prompts --curve docs/img/long-prompts.png",
        "long-prompts/long-prompts-embedded.json", LOOP, "ruff",
    ),
    _rare(
        "long-prompts-smollm2", 4, "long_prompts --model smollm2 --dtype auto --rounds 3",
        "long-prompts/long-prompts-smollm2.json", LOOP,
    ),
    _rare("deferred", 20, "deferred", "deferred/deferred.json", LOOP),
    _bench("linear", 3, "kernels.linear", "kernels/linear.json", PRODUCTS),
    _rare(
        "linear-amx", 1, "kernels.linear --precisions bfloat16 q8_0 q4_0 q4_1 --rows 1 8 16 64 256",
        "amx/linear.json", PRODUCTS, "amx_int8",
    ),
    _bench(
        "roofline", 2, "kernels.roofline --picture docs/img/kernels-roofline.png",
        "kernels/roofline.json", PRODUCTS, "ruff",
    ),
    _rare(
        "speculation", 4, "speculation --picture docs/img/speculation.png",
        "speculation/speculation-q4_1.json", LOOP,
    ),
    _rare("prefix", 6, "prefix --dtype bfloat16", "prefix/prefix-bfloat16.json", LOOP),
    _rare("masks", 8, "masks", "masks/masks.json", LOOP),
    _rare("hostile", 6, "hostile.grammars", "hostile/hostile.json", LOOP),
    _rare(
        "neighbours", 6, "hostile", "hostile/neighbours.json",
        (*SERVER, "router", "benchmarks/hostile"),
    ),
    _bench(
        "json-schema", 1, "json_schema", "json-schema/json-schema.md",
        ("runtime/grammar", "benchmarks/json_schema.py"), "ruff",
    ),
    _bench("step", 2, "kernels.step", "step/step.json", LOOP),
    _bench(
        "step-prefill", 1, "kernels.step --rows 4 --tokens 512 --past 0", "step/prefill.json", LOOP,
    ),
    _bench("planning", 2, "planning", "planning/planning.json", LOOP),
    # it writes watch/page/recorded/ itself
    Recording(
        "film", 1, "{python} -m benchmarks.pictures.recorded --film {out}/film.svg",
        "docs/img/film.svg", (*LOOP, "watch/film.py"),
    ),
    _bench(
        "watching", 2, "watching", "watching/watching.json",
        (*LOOP, "telemetry", "watch/hub.py", "watch/frames.py"),
    ),
    _bench("store", 2, "store", "store/store-sqlite.json", ("deferred", "benchmarks/store.py")),
    Recording(
        "client", 1, "{python} -m client.client --self-test --json",
        "results/reference-client/speed.json", ("client",),
    ),
    _rare(
        "router", 4, "router --litellm --tib build/text-inference-batcher", "router/router.json",
        ("router", "benchmarks/router.py"), "build/text-inference-batcher", "wrk",
    ),
    _bench(
        "pictures", 3, "pictures", "docs/img/modes.png",
        (*LOOP, "client/workloads", "client/report/pictures"), "ruff",
    ),
    _bench(
        "screens", 2, "pictures.screens", "docs/img/watch-live.png",
        (*SERVER, "watch", "client/report"), "ruff", "chromium",
    ),
)  # fmt: skip
