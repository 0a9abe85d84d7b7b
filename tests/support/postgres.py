"""A PostgreSQL server of the tests' own, from the binaries that Debian's package `postgresql`
brings; reached through a socket in its folder, so no port is taken."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

START_S = 60
FASTEST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # a busy disk is slow to sync


class Postgres:
    def __init__(self) -> None:
        """Raises FileNotFoundError where there are no binaries."""
        self._binaries = _binaries()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._as_user: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=FASTEST))
        if os.geteuid() == 0:  # PostgreSQL refuses to be run by root
            user = pwd.getpwnam("nobody")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        subprocess.run(
            [
                *(self._binaries / "initdb", "--pgdata", self.folder / "data", "--no-sync"),
                *("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"),
            ],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            check=True,
            **self._as_user,
        )
        self.start()

    def start(self) -> None:
        """No effect where it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        # ends with the tests, also where they are killed
        tied = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *tied,
                    *(self._binaries / "postgres", "-D", self.folder / "data"),
                    *("-k", self.folder, "-c", "listen_addresses=", "-c", "fsync=off"),
                    *("-c", "shared_buffers=16MB", "-c", "max_connections=50"),
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                **self._as_user,
            )
        end_s = time.monotonic() + START_S
        while self._run("pg_isready").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"postgres did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """At once: its connections break."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=START_S)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"jobs{self._databases}"
        self._run("createdb", "--username=postgres", name).check_returncode()
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command: list[str | Path] = [self._binaries / program, "-h", self.folder, *arguments]
        return subprocess.run(command, stdout=subprocess.DEVNULL)


def _binaries() -> Path:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not versions:
        raise FileNotFoundError("no PostgreSQL binaries: apt-get install postgresql")
    return max(versions, key=lambda path: int(path.parent.name))
