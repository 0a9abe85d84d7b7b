"""Starts a model server and the HTTP server in front of it, as one command."""
