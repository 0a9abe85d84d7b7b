"""The network and what it needs: checkpoints, KV caches, attention variants, sampling."""
