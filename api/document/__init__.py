"""The OpenAPI document of all that the server offers."""
