"""Linear layers of a network on a CPU: what can compute them, and which of that is the fastest."""
