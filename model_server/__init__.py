"""A model in a separate process behind gRPC: the server, its shards, and the engine's side."""
