"""The cost of the router, compared with other proxies."""
