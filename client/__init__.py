"""The load generator and the comparison.

Uses HTTP only and imports none of the server's code, so it can also load any OpenAI- or
TGI-compatible server.
"""
