"""A workload's deferred requests as one job of the Batch API, beside the immediate ones.

A separate thread uploads and follows the job while the immediate requests are sent.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import requests

from client.load.http.dialects import OpenAI
from client.load.http.target import Target
from client.workloads.spec import SpecError
from client.workloads.workload_file import Request, Workload, seal

POLL_S = 0.5
ANSWER_S = 60.0
SILENCE_S = 60.0  # of a server with the job, after which the job is given up
PASSING = (408, 429)  # like 5xx: from a proxy, or a server that is busy or restarting
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class Job:
    """The result of a job; ``completed_s`` from its creation to its end, by the client's clock."""

    status: str
    lines: int
    completed: int
    failed: int
    output_tokens: int
    completed_s: float
    window: str
    error: str | None = None

    @property
    def met(self) -> bool:
        """Whether all lines ended within the window."""
        return self.status == "completed"

    def figures(self) -> dict[str, Any]:
        rate = self.output_tokens / self.completed_s if self.completed_s else 0.0
        return {**asdict(self), "deadline_met": self.met, "tokens_per_s": rate}

    def line(self) -> str:
        text = (
            f"deferred job: {self.status}, {self.completed} of {self.lines} lines done, "
            f"{self.failed} failed, {self.output_tokens} output tokens in "
            f"{self.completed_s:.2f} s; window {self.window}: {'met' if self.met else 'not met'}"
        )
        return text if self.error is None else f"{text} ({self.error})"


def split(workload: Workload) -> tuple[Workload, list[Request]]:
    """The requests to send, and those of the job. SpecError if either is empty."""
    later = [request for request in workload.requests if request.service == "deferred"]
    now = [request for request in workload.requests if request.service != "deferred"]
    if not later or not now:
        raise SpecError(
            f"--deferred-as-batch needs immediate and deferred requests, the workload has "
            f"{len(now)} and {len(later)} (--deferred-share)"
        )
    kept = seal(
        workload.generator, now, workload.duration_s, steady=workload.steady, users=workload.users
    )
    return kept, later


def job_lines(target: Target, deferred: list[Request]) -> tuple[str, bytes]:
    """The endpoint and the file. Asks for exactly the requested tokens if the server accepts
    ``ignore_eos``."""
    dialect = OpenAI({"ignore_eos": True}) if target.native else target.dialect
    if not isinstance(dialect, OpenAI):
        raise SpecError("--deferred-as-batch: TGI and the Responses API have no Batch API")
    endpoint = dialect.path(stream=False)
    lines = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": endpoint,
            "body": dialect.body(request, stream=False),
        }
        for number, request in enumerate(deferred)
    ]
    return endpoint, "".join(json.dumps(line) + "\n" for line in lines).encode()


class JobRun:
    """``start``, send a workload, ``end``."""

    def __init__(self, target: Target, deferred: list[Request]) -> None:
        self._target = target
        self._lines = len(deferred)
        self._endpoint, self._content = job_lines(target, deferred)
        deadlines = [request.deadline_s for request in deferred]
        known = [deadline for deadline in deadlines if deadline is not None]
        # the last of several deadlines, since a job has one window
        self._window = f"{math.ceil(max(known))}s" if len(known) == len(deadlines) else "24h"
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)
        self._job = Job("not created", self._lines, 0, 0, 0, 0.0, self._window)

    def start(self) -> None:
        self._thread.start()

    def end(self, *, cancel: bool = False) -> Job:
        """Waits for the job's end; ``cancel`` ends it."""
        if cancel:
            self._leaving.set()
        self._thread.join()
        return self._job

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            file = self._ask("POST", "/files", files={"file": self._content},
                             data={"purpose": "batch"})  # fmt: skip
            body = {
                "input_file_id": file["id"],
                "endpoint": self._endpoint,
                "completion_window": self._window,
            }
            batch = self._ask("POST", "/batches", json=body)
            began_s = heard_s = time.monotonic()
            path, cancelled = f"/batches/{batch['id']}", False
            while batch["status"] not in ENDED:
                if self._leaving.is_set():
                    time.sleep(POLL_S)
                else:
                    self._leaving.wait(POLL_S)
                try:
                    if self._leaving.is_set() and not cancelled:
                        with contextlib.suppress(ValueError):  # refused: it has just ended
                            self._ask("POST", f"{path}/cancel")
                        cancelled = True
                    batch = self._ask("GET", path)
                    heard_s = time.monotonic()
                except requests.RequestException:
                    if time.monotonic() - heard_s > SILENCE_S:
                        raise
                self._take(batch, began_s)
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            self._take({"status": "lost"}, began_s, f"{type(error).__name__}: {error}")

    def _take(self, batch: dict[str, Any], began_s: float, error: str | None = None) -> None:
        counts, usage = batch.get("request_counts") or {}, batch.get("usage") or {}
        faults = (batch.get("errors") or {}).get("data") or []
        self._job = Job(
            batch["status"],
            self._lines,
            counts.get("completed", self._job.completed),
            counts.get("failed", self._job.failed),
            usage.get("output_tokens", self._job.output_tokens),
            time.monotonic() - began_s,
            self._window,
            error or (faults[0].get("message") if faults else None),
        )

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self._target.ask(method, f"/v1{path}", timeout=ANSWER_S, **options)
        if answer.status_code >= 400:
            passing = answer.status_code >= 500 or answer.status_code in PASSING
            kind = requests.HTTPError if passing else ValueError
            raise kind(f"HTTP {answer.status_code}: {answer.text[:300]}")
        data: dict[str, Any] = answer.json()
        return data
