"""The load generator on the command line: one prompt, a hundred samples, or any workload file.

Runs as ``python client/client.py``, in any folder, and as ``python -m client.client``. Reads the
server's IP and PORT from the environment or client/.env; any other server is a ``--target``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from dotenv import load_dotenv

if __package__ in (None, ""):  # run as a script: this folder is not the package's parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from client.analysis.gates import FAILED
from client.analysis.metrics import Objectives, parse_objectives
from client.load.deferred import JobRun, split
from client.load.http.dialects import Native
from client.load.http.target import Target, parse_target
from client.load.live import clock_in, live_view, say
from client.load.machine import commit, machine, versions
from client.load.play import SILENCE_S
from client.load.records import Run, make_folder
from client.load.servers.probing import FIRST_ANSWER_S, adapted
from client.load.servers.processes import ServerError, cause, end_as_ctrl_c, unreachable
from client.load.servers.stats import handled, settled_stats
from client.load.workers import Crew, WorkerError
from client.options.client import parser, workload_of
from client.options.rules import check
from client.report.run import Facts, judged, run_figures, run_text, write_run_report
from client.selftest import self_test
from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    load_dotenv(Path(__file__).resolve().parent / ".env")
    end_as_ctrl_c()
    try:
        check(args)
        if args.self_test:
            return self_test(
                as_json=args.json, workers=args.workers or 1, keep_alive=args.keep_alive
            )
        own = f"http://{os.getenv('IP', 'localhost')}:{os.getenv('PORT', '8500')}"
        target = replace(parse_target(args.target or own), keep_alive=args.keep_alive)
        if args.prompt is not None:
            return _one(target, args)
        objectives = parse_objectives(args.slo) if args.slo else None
        _check_knowable(target, objectives, args)
        workload = workload_of(args, target)
        jobs = None
        if args.deferred_as_batch:
            workload, deferred = split(workload)
            jobs = JobRun(target, deferred)
        if args.out is not None:
            make_folder(args.out)
        return _run(args, target, workload, jobs, objectives)
    except SpecError as error:
        p.error(str(error))
    except (ServerError, WorkerError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:  # outside a run, which keeps its records
        say("interrupted")
        return 130


def _run(
    args: argparse.Namespace,
    target: Target,
    workload: Workload,
    jobs: JobRun | None,
    objectives: Objectives | None,
) -> int:
    """Play and report; a server that fails ends in a report as well."""
    silence_s = args.timeout_s or SILENCE_S
    before = stats = job = None
    try:
        target = adapted(target, min(silence_s, FIRST_ANSWER_S), stream=not args.no_stream)
    except ServerError as error:
        say(f"error: {error}")
        why = str(error)
        run = Run(target.name, workload, (), 0.0, "nothing", streamed=True, not_begun=why)
    else:
        before = handled(settled_stats(target))
        title = target.name
        if workload.users is None:
            title += f", sending until {clock_in(workload.duration_s)}"
        with Crew(args.workers or 1) as crew, live_view(title, len(workload.requests)) as watch:
            if jobs is not None:
                jobs.start()
            run = crew.play(
                workload, target, drain_s=args.drain_s, silence_s=silence_s, watch=watch
            )
        if run.interrupted:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal sends it twice
        if jobs is not None:
            job = jobs.end(cancel=bool(run.interrupted))
        if unreachable(target) is None:
            stats = settled_stats(target)
    after = handled(stats)
    # The window of /stats is not reset, since others may use it.
    counted = None
    if before is not None and after is not None:
        counted = after - before - (0 if job is None else job.output_tokens)
    environment = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "client_processes": args.workers or 1,
        "sharing": _sharing(target),
    }
    one = judged(run, Facts(objectives, args.warmup, stats, counted, job, environment))
    if args.out is not None:
        write_run_report(args.out, one)
    if args.json:
        print(json.dumps({**run_figures(one), "server": stats}))
    else:
        print(run_text(one))
        if args.out is not None:
            print(args.out / "report.txt")
    failed = one.verdict.word == FAILED or (job is not None and job.error is not None)
    return 130 if run.interrupted else 1 if failed else 0


def _sharing(target: Target) -> str:
    """Which cores client and server share, as far as the address shows."""
    if urlsplit(target.url).hostname not in ("localhost", "127.0.0.1", "::1"):
        return "client and server on different machines, judging by the address"
    return f"client and server share the {len(os.sched_getaffinity(0))} cores of this machine"


def _check_knowable(
    target: Target, objectives: Objectives | None, args: argparse.Namespace
) -> None:
    """Without a stream only this project's servers report the time of the first token."""
    wanted = objectives is not None and not (
        objectives.ttft_s is None and objectives.tpot_s is None
    )
    if args.no_stream and wanted and not target.native:
        raise SpecError("--slo: with --no-stream this kind of server reports no TTFT and TPOT")


def _one(target: Target, args: argparse.Namespace) -> int:
    """The original's single request: the completion on the terminal."""
    if not isinstance(target.dialect, Native):
        raise SpecError("--prompt works with this project's API only")
    tokens = 10 if args.numtokens is None else args.numtokens
    body: dict[str, Any] = {"prompt": args.prompt, "num_tokens": tokens}
    if args.seed is not None:
        body["seed"] = args.seed
    body |= target.dialect.options
    try:
        timeout_s = args.timeout_s or SILENCE_S
        answer = target.ask("POST", "/inference", json=body, timeout=timeout_s)
        data = answer.json()
        if answer.status_code == 200:
            completion = str(data["completion"])
            print(json.dumps(data) if args.json else completion)
            return 0
        why = f"HTTP {answer.status_code}: {data.get('error', data)}"
    except (requests.JSONDecodeError, LookupError, TypeError, AttributeError):
        why = f"{target.url}: not a response of this API: {answer.text[:200]}"
    except requests.RequestException as error:
        why = f"{target.url} does not respond: {cause(error)}"
    say(f"error: {why}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
