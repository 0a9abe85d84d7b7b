"""The messages between an engine and a model server."""
