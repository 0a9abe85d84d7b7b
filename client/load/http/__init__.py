"""A server over HTTP: its address, the dialects of its APIs, one request and its response."""
