"""The OpenAPI document of all paths of the server."""
