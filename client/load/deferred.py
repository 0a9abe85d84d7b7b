"""A workload's deferred requests as one job of the Batch API, beside the immediate ones.

A separate thread uploads and follows the job while the immediate requests are sent.
"""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from client.load.http.dialects import OpenAI
from client.load.http.target import Target
from client.workloads.spec import SpecError
from client.workloads.workload_file import Request, Workload, seal

POLL_S = 0.5
ANSWER_S = 60.0
ENDED = ("completed", "failed", "expired", "cancelled")
MOST_PAUSE_S = 60  # that a server's Retry-After can cause; a job that is cancelled waits for it
# a minute of a proxy's refusals, or of a server that is busy or restarts, costs no job
RETRIES = Retry(
    9,
    status_forcelist=(408, 429, 500, 502, 503, 504),
    backoff_factor=0.25,
    retry_after_max=MOST_PAUSE_S,
)


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

    def figures(self) -> dict[str, Any]:
        rate = self.output_tokens / self.completed_s if self.completed_s else 0.0
        met = self.status == "completed"  # all lines ended within the window
        return {**asdict(self), "deadline_met": met, "tokens_per_s": rate}


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


class JobRun:
    """``start``, send a workload, ``end``. SpecError for an API without batches."""

    def __init__(self, target: Target, deferred: list[Request]) -> None:
        # exactly the requested tokens, if the server accepts that
        dialect = OpenAI({"ignore_eos": True}) if target.native else target.dialect
        if not isinstance(dialect, OpenAI):
            raise SpecError("--deferred-as-batch: TGI has no Batch API")
        self._target, self._endpoint = target, dialect.path(stream=False)
        lines = (
            {
                "custom_id": f"request-{number}",
                "method": "POST",
                "url": self._endpoint,
                "body": dialect.body(request, stream=False),
            }
            for number, request in enumerate(deferred)
        )
        self._content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        deadlines = [math.inf if r.deadline_s is None else r.deadline_s for r in deferred]
        # the last of several deadlines, since a job has one window
        window = "24h" if math.inf in deadlines else f"{math.ceil(max(deadlines))}s"
        self._job = Job("not created", len(deferred), 0, 0, 0, 0.0, window)
        self._leaving = False
        self._session = requests.Session()
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, *, cancel: bool = False) -> Job:
        """Waits for the job's end; ``cancel`` ends it."""
        self._leaving = cancel
        self._thread.join()
        return self._job

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            with self._session as session:
                for scheme in ("http://", "https://"):
                    session.mount(scheme, HTTPAdapter(max_retries=RETRIES))
                content, purpose = {"file": self._content}, {"purpose": "batch"}
                file = self._ask("POST", "/files", files=content, data=purpose)
                body = {
                    "input_file_id": file["id"],
                    "endpoint": self._endpoint,
                    "completion_window": self._job.window,
                }
                batch = self._ask("POST", "/batches", json=body)
                began_s, path = time.monotonic(), f"/batches/{batch['id']}"
                while batch["status"] not in ENDED:
                    time.sleep(POLL_S)
                    if self._leaving and batch["status"] != "cancelling":
                        with suppress(ValueError):  # a refusal: the job may have just ended
                            self._ask("POST", f"{path}/cancel")
                    batch = self._ask("GET", path)
                    self._take(batch, began_s)
                self._take(batch, began_s)
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            self._take({"status": "lost"}, began_s)
            self._job = replace(self._job, error=f"{type(error).__name__}: {error}")

    def _take(self, batch: dict[str, Any], began_s: float) -> None:
        job, counts, usage = self._job, batch.get("request_counts") or {}, batch.get("usage") or {}
        faults = (batch.get("errors") or {}).get("data") or [{}]
        self._job = replace(
            job,
            status=batch["status"],
            completed=counts.get("completed", job.completed),
            failed=counts.get("failed", job.failed),
            output_tokens=usage.get("output_tokens", job.output_tokens),
            completed_s=time.monotonic() - began_s,
            error=faults[0].get("message"),
        )

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        url, headers = f"{self._target.url}/v1{path}", self._target.headers
        answer = self._session.request(method, url, headers=headers, timeout=ANSWER_S, **options)
        if answer.status_code >= 400:
            raise ValueError(f"HTTP {answer.status_code}: {answer.text[:300]}")
        data: dict[str, Any] = answer.json()
        return data
