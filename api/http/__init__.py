"""HTTP code shared by all dialects: bodies, errors, keys, CORS, streams and departed clients."""
