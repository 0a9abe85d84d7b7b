"""Calls of tools: as chat templates show them, and as models write them."""
