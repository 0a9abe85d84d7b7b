"""One OpenAI-compatible address in front of many inference servers.

Two layers. The *state* (`rules/`) is pure: no asyncio, no sockets, no clock; methods take `now`,
seconds on a monotonic clock. The *data plane* (`http/`, `dispatching`, `metrics`, `service`) moves
bytes as the state decides. The router does not import the inference server.
"""
