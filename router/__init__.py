"""One OpenAI-compatible address in front of many inference servers.

Two layers. The *state* (`upstream`, `breaker`, `budget`, `policies`, `fleet`, `dispatch`) is pure:
no asyncio, no sockets, no clock (every method is handed `now`, seconds on a monotonic clock).
The *data plane* (`proxy`, `relay`, `probes`, `admin`, `metrics`, `service`) moves bytes and asks
the state what to do. Nothing here knows the server's other packages.
"""
