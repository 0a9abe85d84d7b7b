"""Measurements of ourselves and of our peers on the same work in one run."""
