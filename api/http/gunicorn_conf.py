"""gunicorn's side of the server: one worker, many threads, and how it ends.

gunicorn stops accepting at SIGTERM and lets open connections finish. Here the worker continues
serving until the queue has drained, so that new requests and `/health` receive 503 instead of
hanging in the backlog; gunicorn's own stop begins only then.
"""

import logging
import math
import os
import queue
import resource
import signal
import threading
import time
from typing import Any

from api.http.hooks import formatter
from api.http.worker.gathering import GatheringWorker
from serving.config import Config

OTHER_FILES = 256  # open besides connections, at most

_config = Config.from_environment()
_debug = _config.log_level == "debug"


class Worker(GatheringWorker):
    client_timeout_s = _config.client_timeout
    most_body_bytes = _config.max_body_bytes
    most_held_bytes = _config.max_held_bytes
    keys = _config.keys


bind = _config.url.removeprefix("http://")
workers = 1  # the queue and the model live in one process
worker_class = Worker
threads = _config.threads
# connections that wait for their clients hold no thread, but a file each
_files, _most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
_open_files = 2 * threads + OTHER_FILES
if _most_files != resource.RLIM_INFINITY:
    _open_files = min(_open_files, _most_files)
if _files != resource.RLIM_INFINITY:
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(_files, _open_files), _most_files))
worker_connections = max(_open_files - OTHER_FILES, _open_files // 2)
backlog = 2048
keepalive = 75  # longer than clients keep theirs, so that no request meets a closing connection
timeout = 0  # the main thread only dispatches; killing the worker would not help
graceful_timeout = math.ceil(_config.drain_timeout) + 20
control_socket_disable = True
limit_request_field_size = 32 * 1024  # tokens and traces of others' headers may be long
sendfile = False  # it would wait for its client without a limit
forwarder_headers = ""  # a request's own SCRIPT_NAME would lead past rules about paths
loglevel = "debug" if _debug else "warning"
accesslog = "-" if _debug else None

_handler = logging.StreamHandler()
_handler.setFormatter(formatter(_config.log_format))
logging.basicConfig(level=_config.log_level.upper(), handlers=[_handler])
if not _debug:
    logging.getLogger("alembic").setLevel("WARNING")  # it lists its plugins at every start


def on_starting(server: Any) -> None:
    """gunicorn's own messages in the same format."""
    server.log.error_log.addFilter(_is_of_use)
    for handler in server.log.error_log.handlers:
        handler.setFormatter(formatter(_config.log_format))


def _is_of_use(record: logging.LogRecord) -> bool:
    """Drops a message for each client that stalls, and a guess at why the worker has ended."""
    stalls = bool(record.exc_info and isinstance(record.exc_info[1], TimeoutError))
    return not stalls and record.msg != "Reason: %s"


_started_by_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def when_ready(server: Any) -> None:
    """A closed terminal ends the server like SIGTERM, except under nohup; gunicorn would load the
    model a second time."""
    if _started_by_nohup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        server.handle_hup = server.handle_term


def post_worker_init(worker: Any) -> None:
    engine = worker.wsgi.extensions["engine"]
    worker.intake = worker.wsgi.extensions["intake"]
    # A handler may interrupt the main thread while it holds any lock (gunicorn's own handler of
    # SIGINT hangs on one); only SimpleQueue.put is a reentrant way to notify another thread.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_end, args=(worker, engine, signals), name="end", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda number, _frame: signals.put(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # gunicorn's master receives it and forwards it
    if worker.alive:  # otherwise a signal came before these handlers
        engine.start()


def _end(worker: Any, engine: Any, signals: queue.SimpleQueue[int]) -> None:
    def drain() -> None:
        engine.drain()
        worker.handle_exit(signal.SIGTERM, None)

    while signals.get() == signal.SIGTERM:
        threading.Thread(target=drain, name="drain", daemon=True).start()
    # Ctrl-C: requests in the queue fail with an error, the connections of those still in the intake
    # are closed, and nothing delays the end of the process, not even a long iteration or a download
    engine.jobs.stop(timeout_s=1.0)  # running lines are returned, so that none counts as lost
    engine.abort(timeout_s=1.0)
    time.sleep(0.1)  # to send the responses
    os._exit(0)


def worker_exit(_server: Any, worker: Any) -> None:
    """Ends at once: Python would wait for every handler's thread, and torch's threads may crash a
    process at its end; everything has been sent by now."""
    if worker.booted and worker.pid == os.getpid():
        if (tracing := worker.wsgi.extensions["tracing"]) is not None:
            tracing.close()
        os._exit(0)
