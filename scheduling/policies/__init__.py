"""The base policies, one a file."""
