"""Prefix caching: what a shared beginning saves, and what looking for one costs."""
