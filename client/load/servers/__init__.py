"""Servers under load: their processes, what they can do, and what they say of themselves."""
