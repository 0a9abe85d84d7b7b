"""A model in one separate process, in several, and when these die."""
