"""The router's sockets: takes requests in, relays them, probes upstreams."""
