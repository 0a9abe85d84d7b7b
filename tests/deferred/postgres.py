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

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

START_S = 60


class Postgres:
    def __init__(self) -> None:
        """Raises FileNotFoundError where there are no binaries."""
        self._binaries = _binaries()
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        memory = Path("/dev/shm")  # spares a busy disk
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=memory if memory.is_dir() else None))
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        made = subprocess.run(
            [
                *(self._binaries / "initdb", "--pgdata", self.folder / "data", "--no-sync"),
                *("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"),
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            **self._as_user(),
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr}")
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
                **self._as_user(),
            )
        end_s = time.monotonic() + START_S
        while not self._answers():
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
        engine = create_engine(self._driver_url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def _driver_url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def _answers(self) -> bool:
        engine = create_engine(self._driver_url("postgres"))
        try:
            with engine.connect():
                return True
        except OperationalError:
            return False
        finally:
            engine.dispose()

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to be run by root."""
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _binaries() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not versions:
        raise FileNotFoundError("no PostgreSQL binaries: apt-get install postgresql")
    return max(versions, key=lambda path: int(path.parent.name))


def _user() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None
