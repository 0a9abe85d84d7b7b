"""What batching.py drives: requests, their queue and life, iterations, the ledger of KV blocks."""
