"""The router's rules: pure functions and state. No sockets, no event loop, no clock."""
