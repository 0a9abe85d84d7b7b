"""A small model hub: the paths that `huggingface_hub` asks for, over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


@contextmanager
def hub(repository: str, files: Mapping[str, bytes | None]) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the files that were downloaded so far. Files without content are listed
    only."""
    taken: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path, body = self.path.partition("?")[0], None
            if path.startswith(f"/api/models/{repository}/tree/"):
                entries = [
                    {"type": "file", "path": name, "oid": COMMIT, "size": len(content or b"")}
                    for name, content in files.items()
                ]
                body = json.dumps(entries).encode()
            elif path.startswith(f"/api/models/{repository}"):
                siblings = [{"rfilename": name} for name in files]
                told = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False}
                body = json.dumps(told).encode()
            elif path.startswith(f"/{repository}/resolve/"):
                name = path.split("/", 5)[5]
                body = files.get(name)
                if self.command == "GET":
                    taken.append(name)
            self.send_response(404 if body is None else 200)
            body = body or b""
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
