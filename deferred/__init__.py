"""Durable jobs: the Files and Batches of the Batch API, and what works them off.

The store (`store/`) keeps files, batches and their items in SQLite or PostgreSQL; it knows
neither HTTP nor line formats nor the engine.
"""
