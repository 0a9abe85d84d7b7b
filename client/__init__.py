"""The load generator and the comparison.

Speaks HTTP only and knows nothing of the server's code, so it can load any OpenAI- or
TGI-compatible server too.
"""
