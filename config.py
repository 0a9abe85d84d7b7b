"""Every option of the server once: name, type, default, limits, environment variable, help."""

from __future__ import annotations

import ipaddress
from dataclasses import MISSING, dataclass
from typing import ClassVar, Literal

from options import Group, OptionError, Options, flag

MODES = ("nobatch", "static", "dynamic")
SPARE_THREADS = 32  # for /stats, /health and refusals while every place is taken

SHARING = Group("how requests share the model")
MODEL = Group("model")
NETWORK = Group("network")
QUEUE = Group("batch and queue")
STATIC = Group("mode static", only="static")
DYNAMIC = Group("mode dynamic", only="dynamic")
TGI = Group("mode dynamic with --policy tgi", only="policy tgi")
STALL_FREE = Group("mode dynamic with --policy stall-free", only="policy stall-free")
SHORTEST_FIRST = Group("mode dynamic with --policy shortest-first", only="policy shortest-first")
DEFERRED = Group("deferred requests")
TGI_API = Group("TGI's API")
BATCH_API = Group("Batch API")
PROCESS = Group("process")


@dataclass(frozen=True, slots=True)
class Config(Options):
    """What a server process is told. Raises OptionError."""

    usage: ClassVar = "./server.sh MODE [options]"
    description: ClassVar = "Serves one model over HTTP."
    prefix: ClassVar = "EB_"

    mode: Literal["nobatch", "static", "dynamic"] = SHARING.option(MISSING)
    """nobatch (one at a time), static (a batch forms and runs until its longest request is done) or
    dynamic (requests join and leave at every iteration)"""

    model: str = MODEL.option("embedded")
    """embedded (ships with the project), gpt2, gpt2-medium, gpt2-large, gpt2-xl (downloaded),
    random:gpt2-medium and the like (random weights of that shape, to measure speed), or a folder in
    the Hugging Face layout"""
    served_model_name: str | None = MODEL.option(None, pattern=r"[^,\s]+(,[^,\s]+)*")
    """names by which clients may call the model, comma separated; answers have the first; none:
    what --model names"""
    device: str = MODEL.option("auto", pattern=r"auto|cpu|cuda(:\d+)?")
    """auto (a GPU where there is one), cpu, cuda, cuda:1 ..."""
    dtype: Literal["float32", "bfloat16"] = MODEL.option("float32")
    """precision of weights and KV cache"""
    kv_memory: str = MODEL.option("auto", pattern=r"auto|\d+(\.\d+)?(tokens|[KMG]?B|[KMG]iB)")
    """keys and values: auto (what the batch limit needs, or a share of the free memory), or an
    amount such as 2GiB, 500MB, 30000tokens"""
    seed: int = MODEL.option(0, least=0, most=2**63 - 1)
    """seed of the random weights of random:NAME"""

    host: str = NETWORK.option("127.0.0.1")
    """address to listen on; 0.0.0.0 opens it to the network"""
    port: int = NETWORK.option(8500, least=1, most=65535)
    """port to listen on"""
    api_key: str | None = NETWORK.option(
        None, pattern=r"[!-+\--~]+(,[!-+\--~]+)*", secret=True, variables=["API_KEY"]
    )
    """keys of visible ASCII, comma separated, one of which a client has to send as Authorization:
    Bearer KEY to all paths but /health; other users of this machine can read a command line, not
    your environment; none: everyone may ask"""
    cors_allow_origin: str | None = NETWORK.option(
        None, pattern=r"\*|https?://[^,\s/]+(,https?://[^,\s/]+)*"
    )
    """pages of other origins that may call this server: https://host[:port], several comma
    separated, or * for all; none: no page may"""
    max_body_bytes: int = NETWORK.option(2**20, least=1024, most=2**30)
    """largest request body"""
    client_timeout: float = NETWORK.option(60.0, least=0.1, most=86_400)
    """seconds in which a client has to send its request, and one more for each 64 KiB of it, or to
    take some more of its answer; else its connection is closed and its request cancelled"""
    stream_heartbeat: float = NETWORK.option(15.0, least=0.01, most=86_400)
    """seconds without a token after which a stream is sent a comment, and its head before that;
    shorter than the idle timeout of every proxy in between"""

    max_batch_size: int = QUEUE.option(32, least=1, most=4096)
    """most requests in one iteration"""
    max_waiting: int = QUEUE.option(1024, least=1, most=16384)
    """most requests in the queue; those beyond are answered with 429"""
    max_waiting_prompt_tokens: int = QUEUE.option(2**20, least=1, most=2**40)
    """most prompt tokens in the queue; requests beyond are answered with 429"""
    request_timeout: float = QUEUE.option(3600.0, least=0.001, most=31_536_000)
    """seconds after its arrival at which a request that is not done, waiting or running, ends with
    an error"""

    lookahead: int = QUEUE.option(0, least=0, most=1)
    """iterations that may be in flight while the next one is planned; 1 hides the planning behind a
    device that computes by itself (a GPU), and only delays tokens where the CPU computes"""

    max_wait_ms: float = STATIC.option(50.0, least=0, most=60_000)
    """how long the oldest request waits for others to join its batch"""
    static_release: Literal["batch", "request"] = STATIC.option("batch")
    """answers leave with their batch, or each request's when it is complete"""

    policy: str = DYNAMIC.option("orca")
    """which requests are advanced next: orca, tgi, stall-free, shortest-first, or a policy of your
    own as MODULE:CLASS"""
    admission: Literal["reserve", "optimistic"] = DYNAMIC.option("reserve")
    """a request is admitted when the KV memory holds all that it may generate (and is never
    preempted), or when it holds its prompt (and is preempted when memory runs short)"""

    max_batch_prefill_tokens: int = TGI.option(4096, least=1, most=2**31)
    """most prompt tokens in one iteration"""
    max_batch_total_tokens: int | None = TGI.option(None, least=2, most=2**40)
    """most tokens, of prompts and asked for, of all running requests; none: what the KV memory
    holds"""
    waiting_served_ratio: float = TGI.option(0.3, least=0, most=1000)
    """running requests are interrupted for this many times as many waiting ones"""
    max_waiting_tokens: int = TGI.option(20, least=1, most=2**31)
    """tokens that running requests generate before any waiting one interrupts them"""
    token_budget: int = STALL_FREE.option(512, least=2, most=2**31)
    """tokens of an iteration, decodes and pieces of prompts"""
    max_bypass: int = SHORTEST_FIRST.option(32, least=1, most=2**31)
    """later arrivals that may be admitted before a request"""

    deferred_policy: Literal["budget", "fifo", "priority", "exclusive"] = DEFERRED.option("budget")
    """budget (they fill what a time budget leaves in each iteration), fifo (as immediate ones),
    priority (immediate ones are admitted first), exclusive (only while no immediate one is there);
    in modes other than dynamic all but fifo admit them only while no immediate one waits"""
    deferred_budget: float = DEFERRED.option(1.15, least=1, most=100)
    """policy budget: how many times as long immediate requests may take for the sake of deferred
    ones"""
    deferred_target_ms: float | None = DEFERRED.option(None, least=0.001, most=3_600_000)
    """policy budget: iterations with immediate requests may take so long, instead of
    --deferred-budget; none: that"""
    deferred_max_step_ms: float = DEFERRED.option(100.0, least=0.001, most=3_600_000)
    """policy budget: longest iteration of deferred requests alone, for which the next immediate one
    may have to wait"""

    max_concurrent_requests: int | None = TGI_API.option(None, least=1, most=65536)
    """most requests at once, those beyond are answered with 429; none: as many as the queue and the
    batch take"""
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
    """most tokens of a prompt and its answer; none: the model's context"""

    data_dir: str = BATCH_API.option("data", variables=["DATA_DIR"])
    """folder of files and jobs; made when they are first used, for one server at a time"""
    database_url: str | None = BATCH_API.option(
        None,
        pattern=r"postgresql(\+psycopg)?://[^/]*/.+|sqlite:////.+",
        secret=True,
        variables=["DATABASE_URL"],
    )
    """database in place of --data-dir: postgresql://USER:PASSWORD@HOST/NAME, which several servers
    may share, or sqlite:////PATH/jobs.db"""
    file_retention_days: float = BATCH_API.option(30.0, least=0.001, most=36_500)
    """days after which files are deleted, where the client did not say"""
    batch_retention_days: float = BATCH_API.option(30.0, least=0.001, most=36_500)
    """days after its end at which a batch is removed from the lists"""
    max_stored_bytes: int | None = BATCH_API.option(10 * 2**30, least=1, most=2**60)
    """most bytes that an API key may store in files and in batches that have not ended; uploads and
    new batches beyond are answered with 413; without --api-key: all clients together; none: no
    limit"""
    min_completion_window: int = BATCH_API.option(600, least=1, most=2_592_000)
    """shortest completion_window, in seconds; the earliest deadline goes first, so a short window
    is a place before others"""

    drain_timeout: float = PROCESS.option(30.0, least=0, most=86_400)
    """seconds that accepted requests have to finish after SIGTERM"""
    log_level: Literal["debug", "info", "warning", "error"] = PROCESS.option("info")
    """least level logged"""
    log_format: Literal["plain", "json"] = PROCESS.option("plain")
    """logs for people or for machines"""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        most_input, most_total = self.max_input_tokens, self.max_total_tokens
        if most_input and most_total and most_input >= most_total:
            raise OptionError(
                f"--max-input-tokens is {most_input}; allowed: less than --max-total-tokens "
                f"({most_total})"
            )

    @property
    def threads(self) -> int:
        """Enough that every request the limits admit has a thread, so that none hides in the
        socket's backlog and all refusals are ours."""
        return self.max_batch_size + self.max_waiting + SPARE_THREADS

    @property
    def grows(self) -> bool:
        """Whether requests are admitted with less memory than they may come to need."""
        return self.mode == "dynamic" and self.admission == "optimistic"

    @property
    def without_effect(self) -> list[str]:
        """What is set to another value than its default and has no effect here, in words."""
        found = []
        for option in self.declared():
            only = option.group.only
            if only is None or getattr(self, option.name) == option.default:
                continue
            if only in MODES:
                fits, where = only == self.mode, f"in mode {only}"
            else:  # a policy of one's own may read the options of any other
                fits = only == f"policy {self.policy}" or ":" in self.policy
                fits, where = fits and self.mode == "dynamic", f"with --{only}"
            if not fits:
                found.append(f"{flag(option.name)} has an effect {where} only")
        return found

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
