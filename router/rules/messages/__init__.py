"""What crosses the router: headers, bodies, events, and its own errors. Pure."""
