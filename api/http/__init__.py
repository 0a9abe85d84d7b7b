"""What all dialects share of HTTP: bodies, errors, keys, CORS, streams and departed clients."""
