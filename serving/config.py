"""Every option of the server once: name, type, default, limits, environment variable, help."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import ClassVar, Literal

from model_server.config import MODEL, PROCESS, REMOTE, ModelOptions
from options import OptionError, OptionGroup, Options, flag
from scheduling.registry import JOINING, PAUSING
from web.browsers import host_names

MODES = ("nobatch", "static", "dynamic")
RESIDENT_WHERE_PAUSED = 4  # x the batch limit
SPARE_THREADS = 32  # for /stats, /health and refusals while all others are busy

NETWORK = OptionGroup("network")
QUEUE = OptionGroup("batch and queue")
STATIC = OptionGroup("mode static", only="static")
DYNAMIC = OptionGroup("mode dynamic", only="dynamic")
TGI = OptionGroup("mode dynamic with --policy tgi", only="policy tgi")
CHUNKING = ("stall-free", *JOINING, *PAUSING, "fair-slack")
STALL_FREE = OptionGroup(
    "mode dynamic with --policy stall-free and those that build on it",
    only=f"policy {', '.join(CHUNKING)}",
)
TARGETS = OptionGroup(
    "mode dynamic with --policy deadline or fair-slack", only="policy deadline, fair-slack"
)
SHORTEST_FIRST = OptionGroup(
    "mode dynamic with --policy shortest-first", only="policy shortest-first"
)
DEFERRED = OptionGroup("deferred requests")
TGI_API = OptionGroup("TGI's API")
BATCH_API = OptionGroup("Batch API")
RESPONSES_API = OptionGroup("Responses API")
WATCH = OptionGroup("live page")


def _tokens_or_auto(text: str) -> int | Literal["auto"]:
    """Raises ValueError."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither auto nor a whole number") from None


@dataclass(frozen=True, slots=True)
class Config(ModelOptions):
    """The server's settings. Raises OptionError."""

    usage: ClassVar = "./server.sh MODE [options]"
    description: ClassVar = "Serves one model over HTTP."

    served_model_name: str | None = MODEL.option(None, pattern=r"[^,\s]+(,[^,\s]+)*")
    """names that clients may use for the model, comma separated; responses carry the first; none:
    the name given to --model"""
    reasoning: Literal["apart", "text"] = MODEL.option("apart")
    """what models write between <think> and </think> before they answer: apart (reasoning_content
    in chats, an item of its own in /v1/responses) or text (it stays in the answer)"""
    generation_config: bool = MODEL.option(True)
    """what the model's generation_config.json says of sampling (temperature, top_k, top_p, min_p,
    repetition_penalty, max_new_tokens) counts where a client says nothing, on OpenAI's APIs and
    /inference; false: it does not"""

    remote_model: str | None = REMOTE.option(None, pattern=r"unix:/.+|.+:\d+")
    """address of a model server (./server.sh model-server) that executes --model: unix:/PATH, or
    HOST:PORT, which needs a token or TLS; give --revision, --device, --dtype, --kv-memory,
    --max-model-len, --cuda-graphs and --seed to the model server then; none: the model runs in this
    process"""
    model_deadline: float = REMOTE.option(600.0, least=1, most=86_400)
    """seconds that one iteration may take while heartbeats continue"""

    host: str = NETWORK.option("127.0.0.1")
    """address to listen on; 0.0.0.0 opens it to the network"""
    port: int = NETWORK.option(8500, least=1, most=65535)
    """port to listen on"""
    api_key: str | None = NETWORK.option(
        None, pattern=r"[!-+\--~]+(,[!-+\--~]+)*", secret=True, variables=["API_KEY"]
    )
    """keys of visible ASCII, comma separated; clients send one as Authorization: Bearer KEY to all
    paths but /health and the page /watch; other users of this machine can read your command line,
    but not your environment; none: no key is needed"""
    cors_allow_origin: str | None = NETWORK.option(
        None, pattern=r"\*|[a-z][a-z0-9+.-]*://[^,\s/]+(,[a-z][a-z0-9+.-]*://[^,\s/]+)*"
    )
    """origins whose web pages may call this server: https://host[:port], comma separated, or * for
    all, which without --api-key may only read; none: no other origin may"""
    allow_hosts: tuple[str, ...] = NETWORK.option((), parse=host_names)
    """names under which clients reach this server, comma separated; .example.com includes all names
    below it; an IP address, localhost and the machine's own name are always allowed, and with
    --api-key every name is"""
    max_body_bytes: int = NETWORK.option(2**20, least=1024, most=2**30)
    """largest request body"""
    max_held_bytes: int = NETWORK.option(256 * 2**20, least=1024, most=2**40)
    """most bytes of request bodies held at once; further requests get 503"""
    client_timeout: float = NETWORK.option(60.0, least=0.1, most=86_400)
    """seconds that a client has to send its request, and to read its response once it has fallen
    behind (plus one for each 64 KiB); after that its connection is closed and its request
    cancelled"""
    stream_heartbeat: float = NETWORK.option(15.0, least=0.01, most=86_400)
    """seconds without a token after which a stream sends a comment; choose less than the idle
    timeout of every proxy in between"""

    max_batch_size: int = QUEUE.option(32, least=1, most=4096)
    """most requests in one iteration"""
    max_resident: int | None = QUEUE.option(None, least=1, most=16384)
    """most requests that hold KV memory, those that a policy pauses included; at least
    --max-batch-size; none: --max-batch-size, and four times as many for policies that pause
    and for your own"""
    max_waiting: int = QUEUE.option(1024, least=1, most=16384)
    """most requests in the queue; further ones get 429"""
    max_waiting_prompt_tokens: int = QUEUE.option(2**20, least=1, most=2**40)
    """most prompt tokens in the queue; further requests get 429"""
    request_timeout: float = QUEUE.option(3600.0, least=0.001, most=31_536_000)
    """seconds after its arrival at which an unfinished request, waiting or running, ends with an
    error"""

    max_priority: int = QUEUE.option(0, least=-(2**31), most=2**31 - 1)
    """most urgent priority that a request may ask for; a lower number is more urgent, and requests
    that ask for none have 0"""

    lookahead: int | None = QUEUE.option(None, least=0, most=1)
    """iterations that may be in flight while the next one is planned and started; 1 hides planning,
    launches and messages behind the model's work, but with a model on this CPU it only delays
    tokens; without this option: 1 with --remote-model or on a GPU, 0 otherwise"""

    max_wait_ms: float = STATIC.option(50.0, least=0, most=60_000)
    """how long the oldest request waits for others to join its batch"""
    static_release: Literal["batch", "request"] = STATIC.option("batch")
    """when a response is sent: when its batch ends, or when its own request is complete"""

    policy: str = DYNAMIC.option("stall-free")
    """which requests run next. In order of arrival: stall-free (prompts in chunks beside decodes),
    fair-slack (more of a prompt while no decode is late for it), orca (prompts whole), tgi (prompts
    interrupt decodes). First: shortest-first (fewest tokens to generate), hrrn (longest wait for
    its prompt's length), vtc (of the user who was served least), dlpm (the same, but prefix hits
    may go before), deadline (earliest deadline, work added; too late ones last). First, while
    others pause: mlfq (fewest tokens computed for it so far), program (for its program so far),
    priority (lowest X-Priority), srpt (fewest tokens predicted to be left). Or your own policy as
    MODULE:CLASS"""
    admission: Literal["reserve", "optimistic"] = DYNAMIC.option("reserve")
    """reserve: a request is admitted when the KV memory can hold all tokens that it may generate,
    and is preempted only if it is deferred or the policy pauses requests; optimistic: when it can
    hold its prompt; it is preempted if memory runs out"""
    prefix_caching: bool = DYNAMIC.option(True)
    """keys and values of prompts are kept while there is memory for them, and requests of the same
    API key that begin alike share them, so that a common beginning is computed once"""
    speculate: int = DYNAMIC.option(0, least=0, most=64)
    """most drafts of a request in one iteration: tokens found in its own text, such as a prompt
    that it edits, computed together and kept as far as they are what would have been generated
    without them; as many as pay off are computed, and none while there are deferred requests; on
    a GPU, tokens where the two best are as good as equal may differ; 0: none"""

    max_batch_prefill_tokens: int = TGI.option(4096, least=1, most=2**31)
    """most prompt tokens in one iteration"""
    max_batch_total_tokens: int | None = TGI.option(None, least=2, most=2**40)
    """most tokens of all running requests, prompts and requested output together; none: what the
    KV memory holds"""
    waiting_served_ratio: float = TGI.option(0.3, least=0, most=1000)
    """running requests are interrupted when this many times as many are waiting"""
    max_waiting_tokens: int = TGI.option(20, least=1, most=2**31)
    """tokens that running requests generate before a waiting one may interrupt them"""
    token_budget: int | Literal["auto"] = STALL_FREE.option(
        "auto", least=2, most=2**31, parse=_tokens_or_auto
    )
    """most tokens in one iteration, decodes and prompt chunks together: a number above
    --max-batch-size, or auto (what takes 2.25 times as long as the decodes alone, learnt while the
    server runs; until then 256 more than --max-batch-size)"""
    ttft_target_ms: float = TARGETS.option(1000.0, least=0.001, most=86_400_000)
    """time to the first token that is due for requests that give no target"""
    tpot_target_ms: float = TARGETS.option(100.0, least=0.001, most=86_400_000)
    """policy fair-slack: time between tokens that is due for requests that give no target"""
    max_bypass: int = SHORTEST_FIRST.option(32, least=1, most=2**31)
    """how many later arrivals may overtake a request"""

    deferred_policy: Literal["budget", "fifo", "priority", "exclusive"] = DEFERRED.option("budget")
    """budget (they fill the spare capacity of each iteration up to a time budget), fifo (treated
    like immediate ones), priority (immediate ones are admitted first), exclusive (only while there
    is no immediate one); in modes other than dynamic, all but fifo admit them only while no
    immediate one waits"""
    deferred_budget: float = DEFERRED.option(1.15, least=1, most=100)
    """policy budget: factor by which deferred requests may slow immediate ones"""
    deferred_target_ms: float | None = DEFERRED.option(None, least=0.001, most=3_600_000)
    """policy budget: longest iteration that contains immediate requests; replaces
    --deferred-budget; none: use --deferred-budget"""
    deferred_max_step_ms: float = DEFERRED.option(100.0, least=0.001, most=3_600_000)
    """policy budget: longest iteration of deferred requests alone; an immediate request that
    arrives meanwhile waits for its end"""

    max_concurrent_requests: int | None = TGI_API.option(None, least=1, most=65536)
    """most requests at once; further ones get 429; none: as many as the queue and the batch hold"""
    max_best_of: int = TGI_API.option(2, least=1, most=64)
    """largest best_of"""
    max_stop_sequences: int = TGI_API.option(4, least=0, most=256)
    """most stop strings"""
    max_top_n_tokens: int = TGI_API.option(5, least=0, most=100)
    """largest top_n_tokens"""
    max_client_batch_size: int = TGI_API.option(4, least=1, most=1024)
    """most texts in the inputs of one request"""
    max_input_tokens: int | None = TGI_API.option(None, least=1, most=2**20)
    """most tokens of a prompt; none: one less than --max-total-tokens"""
    max_total_tokens: int | None = TGI_API.option(None, least=2, most=2**20)
    """most tokens of a prompt and its response; none: the model's context"""
    disable_grammar_support: bool = TGI_API.option(False)
    """whether requests with a grammar or a response format are refused, on every API"""

    data_dir: str = BATCH_API.option("data", variables=["DATA_DIR"])
    """folder for files and jobs; created on first use; one server at a time may use it"""
    database_url: str | None = BATCH_API.option(
        None,
        pattern=r"postgresql(\+psycopg)?://[^/]*/.+|sqlite:////.+",
        secret=True,
        variables=["DATABASE_URL"],
    )
    """database to use instead of --data-dir: postgresql://USER:PASSWORD@HOST/NAME, which several
    servers may share, or sqlite:////PATH/jobs.db"""
    file_retention_days: float = BATCH_API.option(30.0, least=0.001, most=36_500)
    """days after which files are deleted, unless the client chose otherwise"""
    batch_retention_days: float = BATCH_API.option(30.0, least=0.001, most=36_500)
    """days after its end at which a batch is removed from the lists"""
    max_stored_bytes: int | None = BATCH_API.option(10 * 2**30, least=1, most=2**60)
    """most bytes that one API key may store in files, unfinished batches and responses; further
    ones get 413; without --api-key the limit is for all clients together; none: no limit"""
    min_completion_window: int = BATCH_API.option(600, least=1, most=2_592_000)
    """shortest completion_window, in seconds; the earliest deadline runs first, so a shorter window
    would overtake others"""
    response_retention_days: float = RESPONSES_API.option(30.0, least=0.001, most=36_500)
    """days after which a stored response (/v1/responses) is deleted, and with it those that it
    continues; kept in the Batch API's database"""

    record: str | None = PROCESS.option(None)
    """file to which every iteration is written, row by row, as JSON lines; overwritten; none: no
    file"""
    watch_text: bool = WATCH.option(False)
    """whether the live page (/watch) shows prompts and responses to its viewers"""
    watch_viewers: int = WATCH.option(8, least=0, most=256)
    """most viewers of the live page at once; further ones get 503"""

    drain_timeout: float = PROCESS.option(30.0, least=0, most=86_400)
    """seconds for accepted requests to finish after SIGTERM"""
    log_format: Literal["plain", "json"] = PROCESS.option("plain")
    """plain for people, json for machines"""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.max_held_bytes < self.max_body_bytes:
            raise OptionError(
                f"--max-held-bytes is {self.max_held_bytes}; allowed: at least --max-body-bytes "
                f"({self.max_body_bytes})"
            )
        if self.max_resident is not None and self.max_resident < self.max_batch_size:
            raise OptionError(
                f"--max-resident is {self.max_resident}; allowed: at least --max-batch-size "
                f"({self.max_batch_size})"
            )
        most_input, most_total = self.max_input_tokens, self.max_total_tokens
        if most_input and most_total and most_input >= most_total:
            raise OptionError(
                f"--max-input-tokens is {most_input}; allowed: less than --max-total-tokens "
                f"({most_total})"
            )

    @property
    def most_resident(self) -> int:
        """Requests that may hold KV memory at once."""
        if self.max_resident is not None:
            return self.max_resident
        own = ":" in self.policy  # which may pause requests
        pauses = self.mode == "dynamic" and (own or self.policy in PAUSING)
        return (RESIDENT_WHERE_PAUSED if pauses else 1) * self.max_batch_size

    @property
    def threads(self) -> int:
        """Enough for every request that the limits admit, so that none waits unseen in the
        socket's backlog."""
        return self.most_resident + self.max_waiting + SPARE_THREADS + self.watch_viewers

    def iterations_ahead(self, device: str) -> int:
        """`device`: of the model, if it runs in this process: "cpu", or a GPU's name."""
        if self.lookahead is not None:
            return self.lookahead
        return int(self.remote_model is not None or device != "cpu")

    @property
    def most_drafts(self) -> int:
        """Of a row; the rows of the other modes advance together."""
        return self.speculate if self.mode == "dynamic" else 0

    @property
    def grows(self) -> bool:
        """Whether requests are admitted with less memory than they may need later."""
        return self.mode == "dynamic" and self.admission == "optimistic"

    @property
    def without_effect(self) -> list[str]:
        """Sentences about options that were set and have no effect in this mode and policy."""
        sentences = []
        for option in self.declared():
            only = option.group.only
            if only is None or getattr(self, option.name) == option.default:
                continue
            if only in MODES:
                fits, where = only == self.mode, f"in mode {only}"
            else:  # the user's own policy may read the options of any other
                fits = self.policy in only.removeprefix("policy ").split(", ") or ":" in self.policy
                fits, where = fits and self.mode == "dynamic", f"with --{only}"
            if not fits:
                sentences.append(f"{flag(option.name)} has an effect only {where}")
        return sentences

    @property
    def open_to_the_world(self) -> bool:
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def keys(self) -> list[str]:
        return self.api_key.split(",") if self.api_key else []
