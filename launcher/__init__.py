"""Starts a model server for each shard and the HTTP server in front of them, as one command."""
