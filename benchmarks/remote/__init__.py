"""A model in a process of its own, in several, and when they die."""
