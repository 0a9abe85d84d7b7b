"""The three modes on the same work."""
