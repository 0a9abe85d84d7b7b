"""A model in a process of its own, behind gRPC: the server, its shards, and the client's side."""
