"""The options of a model server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import ClassVar, Literal

from options import OptionError, OptionGroup, Options

SHARING = OptionGroup("how requests share the model")
MODEL = OptionGroup("model")
REMOTE = OptionGroup("model in a separate process")
SHARDS = OptionGroup("shards")
PROCESS = OptionGroup("process")


@dataclass(frozen=True, slots=True)
class ModelOptions(Options):
    """What a server and a model server both take: the model, and how they find each other."""

    prefix: ClassVar = "EB_"

    mode: Literal["nobatch", "static", "dynamic"] = SHARING.option(MISSING)
    """nobatch (one at a time), static (a batch forms and runs until its longest request is done) or
    dynamic (requests join and leave at every iteration)"""

    model: str = MODEL.option("embedded")
    """embedded (ships with the project), smollm2 (from a package of the Python registry), gpt2,
    gpt2-medium, gpt2-large, gpt2-xl or ORG/NAME (from the model hub), random:NAME (random weights
    of a known shape, to measure speed), a folder in the Hugging Face layout, or a GGUF file;
    ./server.sh --list-models lists the names"""
    revision: str | None = MODEL.option(None, pattern=r"\S+")
    """branch, tag or commit of a downloaded model; none: its main branch"""
    device: str = MODEL.option("auto", pattern=r"auto|cpu|cuda(:\d+)?")
    """auto (a GPU if there is one), cpu, cuda, cuda:1 ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = MODEL.option("auto")
    """precision of weights and KV cache; auto: bfloat16 on a GPU that computes with it, float16 on
    others, on a CPU float32, or quantised weights as the checkpoint or GGUF file has them; int8:
    weights of linear layers in 8 bits, everything else in bfloat16 (CPU only)"""
    kv_memory: str = MODEL.option("auto", pattern=r"auto|\d+(\.\d+)?(tokens|[KMG]?B|[KMG]iB)")
    """memory for keys and values: auto (what the batch limit needs, or a share of the free memory),
    or an amount such as 2GiB, 500MB, 30000tokens; activations and CUDA graphs use what it leaves"""
    max_model_len: int | None = MODEL.option(None, least=2, most=2**24)
    """most tokens of a prompt and its response; longer requests get 400; memory is planned for it;
    none: the model's context"""
    cuda_graphs: bool = MODEL.option(True)
    """record iterations as CUDA graphs at start, which saves their launches; false: launch each
    operator; no effect on a CPU"""
    seed: int = MODEL.option(0, least=0, most=2**63 - 1)
    """seed of the random weights of random:NAME"""

    model_token: str | None = REMOTE.option(None, pattern=r"[!-~]+", secret=True)
    """the model server's token, of visible ASCII without spaces; other users of this machine can
    read a command line, but not your environment"""
    model_tls: str | None = REMOTE.option(None)
    """folder with ca.pem, cert.pem and key.pem for TLS; both sides need a certificate of this
    authority"""
    model_patience: float = REMOTE.option(5.0, least=0.1, most=3600)
    """seconds without a heartbeat after which the model server is lost: all its shards are
    restarted, and requests wait for them"""

    otlp_endpoint: str | None = PROCESS.option(None, pattern=r"https?://.+")
    """OpenTelemetry collector that receives traces over gRPC, such as http://localhost:4317; none:
    no traces"""
    otlp_service_name: str = PROCESS.option("effective-batching", pattern=r"\S+")
    """the server's name in traces, without spaces; a model server adds .model-server to it"""
    log_level: Literal["debug", "info", "warning", "error"] = PROCESS.option("info")
    """lowest level that is logged"""


@dataclass(frozen=True, slots=True)
class ServeConfig(ModelOptions):
    """The options of a model server. Raises OptionError."""

    usage: ClassVar = "./server.sh model-server [serve MODEL_ID] --listen ADDRESS [options]"
    description: ClassVar = (
        "Executes a model for a server that was started with --remote-model ADDRESS and the same "
        "--model. "
        "Other commands: ./server.sh model-server download-weights MODEL_ID, "
        "./server.sh model-server quantize MODEL_ID OUTPUT_DIR"
    )

    mode: Literal["nobatch", "static", "dynamic"] = SHARING.option("dynamic")
    """mode of the server that uses the model; determines the layout of its memory"""
    max_batch_size: int = MODEL.option(32, least=1, most=4096)
    """most requests in one iteration; the memory is measured for them; the server may have a lower
    limit"""
    speculate: int = MODEL.option(0, least=0, most=64)
    """most drafts of a request in one iteration, in mode dynamic; --speculate of the server may be
    less; on a CPU, linear layers are then chosen among those that compute a row alike whatever is
    beside it"""

    listen: str = REMOTE.option("unix:/tmp/model-server", pattern=r"unix:/.+|.+:\d+")
    """unix:/PATH, or HOST:PORT, which needs --model-token or --model-tls"""

    shards: int = SHARDS.option(1, least=1, most=64, flags=["--num-shard"])
    """processes that share the model: heads, columns and vocabulary are split over them, and each
    reads only its part of the weights; each uses the GPU with the number of its rank; further ones
    listen next to --listen (PATH-1, PORT+1)"""
    rank: int | None = SHARDS.option(None, least=0, most=63)
    """rank of this process among --shards, if the others run elsewhere; when the process ends, its
    supervisor must restart it; none: all shards run here, and this process restarts them"""
    addresses: tuple[str, ...] = SHARDS.option(())
    """addresses of all shards by rank, as the server reaches them; none: --listen and the addresses
    next to it"""
    rendezvous: str | None = SHARDS.option(None, pattern=r".+:\d+")
    """HOST:PORT of rank 0 at which the shards meet, on a private network; none: a free port of this
    machine"""

    record: str | None = PROCESS.option(None)
    """file to which every iteration is written, with its sequences, as JSON lines; overwritten;
    further shards write beside it (FILE-1); none: no file"""
    end_with_stdin: bool = PROCESS.option(False)
    """whether to end when standard input ends: a pipe that all processes which need this one hold
    open"""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.rank is None and self.shards > 1 and self.device.startswith("cuda:"):
            raise OptionError(
                f"--device is {self.device}, and each of --shards ({self.shards}) needs its own "
                "GPU; allowed: auto, cpu, cuda, which gives each rank the GPU with its number "
                "(CUDA_VISIBLE_DEVICES chooses and orders the GPUs)"
            )
        if self.rank is not None:
            if self.rank >= self.shards:
                raise OptionError(
                    f"--rank is {self.rank}; allowed: less than --shards ({self.shards})"
                )
            if self.shards > 1 and not (self.rendezvous and self.addresses):
                raise OptionError("--rank needs --rendezvous and --addresses")
        if self.addresses and len(self.addresses) != self.shards:
            raise OptionError(
                f"--addresses has {len(self.addresses)}; allowed: one for each of --shards "
                f"({self.shards})"
            )


@dataclass(frozen=True, slots=True)
class DownloadConfig(Options):
    """The weights to download. Raises OptionError."""

    usage: ClassVar = "./server.sh model-server download-weights MODEL_ID"
    description: ClassVar = (
        "Downloads a model's weights from the hub, so that a server need not wait for them."
    )
    prefix: ClassVar = "EB_"

    model: str = MODEL.option(MISSING)
    """smollm2, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or ORG/NAME of the model hub"""
    revision: str | None = MODEL.option(None, pattern=r"\S+")
    """branch, tag or commit of a downloaded model; none: its main branch"""


@dataclass(frozen=True, slots=True)
class QuantizeConfig(Options):
    """The checkpoint to quantise. Raises OptionError."""

    usage: ClassVar = "./server.sh model-server quantize MODEL_ID OUTPUT_DIR"
    description: ClassVar = (
        "Writes a checkpoint with int8 weights; --model OUTPUT_DIR then gives the results of "
        "--dtype int8 with the original, to the last bit. Or a GGUF file, OUTPUT_DIR/model.gguf, "
        "with weights of 8 or 4 bits and a scale for each 32 inputs."
    )
    prefix: ClassVar = "EB_"

    model: str = MODEL.option(MISSING)
    """a name, a folder in the Hugging Face layout or a GGUF file"""
    output_dir: str = MODEL.option(MISSING)
    """folder for the checkpoint, new or empty"""
    weights: Literal["int8", "q8_0", "q4_0"] = MODEL.option("int8")
    """type of the weights; q8_0 and q4_0 are those of GGUF files"""
    revision: str | None = MODEL.option(None, pattern=r"\S+")
    """branch, tag or commit of a downloaded model; none: its main branch"""


def read(
    args: Sequence[str], environ: Mapping[str, str] = os.environ
) -> ServeConfig | DownloadConfig | QuantizeConfig:
    """Reads a command line; `serve` may be left out. Ends the process with a message if an option
    is wrong."""
    match args:
        case ["download-weights", *rest]:
            return DownloadConfig.from_args(rest, environ)
        case ["quantize", *rest]:
            return QuantizeConfig.from_args(rest, environ)
        case ["serve", model, *rest] if not model.startswith("-"):
            return ServeConfig.from_args(["--model", model, *rest], environ)
        case ["serve", *rest] | [*rest]:
            return ServeConfig.from_args(rest, environ)
