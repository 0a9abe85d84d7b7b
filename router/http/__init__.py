"""The router's network side: receives requests, relays them, probes upstreams."""
