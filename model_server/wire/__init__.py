"""What crosses between an engine and a model server."""
