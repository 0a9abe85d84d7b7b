"""Durable jobs: the Files and Batches of the Batch API, and their execution.

The store (`store/`) keeps files, batches and their items in SQLite or PostgreSQL; it is independent
of HTTP, line formats and the engine.
"""
