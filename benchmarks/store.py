"""The job store alone: a batch of 50,000 lines in a file of 200 MB, from upload to download.

    python -m benchmarks.store                           # SQLite, in a folder of its own
    python -m benchmarks.store --database postgresql://… # an empty database

Does the work of the server's threads in their order, without HTTP and without a model: the upload
in pieces, the server's validation of each line, the worker's claims and results in groups, and both
files at the end. Peak memory is the kernel's (VmHWM) minus the memory before the upload.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.report import options, save, table
from deferred import lines
from deferred.entities import Batch, NewBatch, NewItem, Result, Usage
from deferred.store import JobStore, open_store

MODEL = "benchmark"
ENDPOINT = "/v1/completions"
WORKER = "benchmark"
PIECE_BYTES = 2**16  # of the upload
CLAIM = 64
GROUP = 256  # results a commit
DAY_S = 24 * 3600.0
Value = TypeVar("Value")


def main() -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--file-mb", type=float, default=200, help="size of the whole file")
    parser.add_argument("--results", type=float, default=1.0, help="size of results / inputs")
    parser.add_argument("--database", help="a URL; default: SQLite in a temporary folder")
    parser.add_argument("--folder", type=Path, help="folder of the temporary files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = Path(folder) / "batch.jsonl"
        line_bytes = write_file(source, args.lines, int(args.file_mb * 1e6))
        store = open_store(args.database or folder)
        phases = run(store, source, int(line_bytes * args.results))
        store.close()
    kind = "PostgreSQL" if args.database else "SQLite"
    rows = [
        (name, f"{seconds:.2f}", f"{args.lines / seconds:.0f}", f"{peak_mb:.0f}")
        for name, (seconds, peak_mb) in phases.items()
    ]
    columns = "phase | seconds | lines/s | peak memory growth, MB"
    card = f"{kind}: a batch of {args.lines} lines, {args.file_mb:g} MB\n\n{table(columns, rows)}"
    figures = {
        "database": kind,
        "lines": args.lines,
        "file_mb": args.file_mb,
        "phases": {name: seconds for name, (seconds, _) in phases.items()},
        "peak_growth_mb": {name: peak_mb for name, (_, peak_mb) in phases.items()},
    }
    save(figures, card, args.out, f"store-{kind.lower()}")


def write_file(path: Path, count: int, size_bytes: int) -> int:
    """Returns the bytes of a line."""
    frame = len(_line(0, ""))
    prompt = ("The quick brown fox jumps over the lazy dog. " * (size_bytes // count // 45 + 1))[
        : max(1, size_bytes // count - frame)
    ]
    with path.open("wb") as file:
        for number in range(count):
            file.write(_line(number, prompt))
    return frame + len(prompt)


def _line(number: int, prompt: str) -> bytes:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 16}
    line = {"custom_id": f"request-{number:07d}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(line).encode() + b"\n"


def run(store: JobStore, source: Path, result_bytes: int) -> dict[str, tuple[float, float]]:
    """Seconds of each phase, and by how many MB its peak exceeded the memory before."""
    phases: dict[str, tuple[float, float]] = {}
    _reset_peak()
    base_mb = _status_mb("VmRSS")

    def timed(name: str, work: Callable[[], Value]) -> Value:
        _reset_peak()
        start_s = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - start_s
        phases[name] = seconds, _status_mb("VmHWM") - base_mb
        return result

    file = timed(
        "upload", lambda: store.files.create("", "batch", "b", _pieces(source), time.time())
    )
    spec = NewBatch(file.id, ENDPOINT, MODEL, "24h")
    store.batches.create("", spec, time.time(), expires_at=time.time() + DAY_S)
    timed("validate", lambda: validate(store))
    timed("work off", lambda: work_off(store, result_bytes))
    batch = timed("finalise", lambda: finalise(store))
    timed("download", lambda: download(store, batch))
    store.files.delete("", file.id, time.time())
    timed("sweep", lambda: sweep(store))
    return phases


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def validate(store: JobStore) -> None:
    batch = store.batches.claim_validation(WORKER, MODEL, time.time())
    assert batch is not None
    envelopes = lines.Envelopes(ENDPOINT, [MODEL], 2**20)

    def items() -> Iterator[NewItem]:
        for number, line in lines.split(store.batches.input(batch), 2**20):
            item = envelopes.judge(number, line)
            assert isinstance(item, NewItem), item
            yield item

    assert not store.items.add(batch.id, WORKER, items())
    store.batches.start(batch.id, WORKER, time.time())


def work_off(store: JobStore, result_bytes: int) -> None:
    text = b"x" * result_bytes
    results: list[Result] = []
    while items := store.items.claim(WORKER, MODEL, CLAIM, time.time()):
        results += [Result(item.lease, True, text, Usage(8, 0, 16)) for item in items]
        if len(results) >= GROUP:
            assert store.items.save(WORKER, results) == len(results)
            results = []
    assert store.items.save(WORKER, results) == len(results)


def finalise(store: JobStore) -> Batch:
    batch = store.batches.claim_finalisation(WORKER, time.time())
    assert batch is not None
    return store.batches.finalise(batch.id, WORKER, time.time(), lines.unrun)


def download(store: JobStore, batch: Batch) -> None:
    assert batch.output_file_id is not None
    for _ in store.files.content("", batch.output_file_id, time.time()):
        pass


def sweep(store: JobStore) -> None:
    while store.sweep(time.time(), 0.0).unfinished:
        pass


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status_mb(field: str) -> float:
    """VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
