"""The network with its checkpoints, KV caches, attention variants and sampling."""
