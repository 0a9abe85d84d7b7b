"""Watching a server work: the live page, its events, traces and the film. All of it reads the
records of iterations and of requests; nothing is measured here."""
