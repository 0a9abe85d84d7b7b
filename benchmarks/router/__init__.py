"""What the router costs, beside other proxies."""
