"""Servers that the tests of this folder share; they leave them idle."""

from tests.support.process import shared

# a collector of traces that is not there harms no request
server = shared("session", hash_model={"step_s": 0.01}, otlp_endpoint="http://127.0.0.1:9")
embedded = shared("session", app="app:create_app()")  # its weights
