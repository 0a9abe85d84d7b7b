"""The environments of `benchmarks.peers`, from which long tests ask other programs."""

from __future__ import annotations

import fcntl
import json
import subprocess
from typing import Any

from benchmarks.peers.environments import BUILD, install, python_of

ANSWER_S = 900


def asked(environment: str, program: str, given: object) -> Any:
    """What a program there answers: JSON comes to its standard input, and leaves it on the last
    line of its output. Tests that run side by side install the environment once."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{environment}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(environment)
    done = subprocess.run(
        [str(python_of(environment)), "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
