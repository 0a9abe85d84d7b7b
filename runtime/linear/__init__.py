"""Linear layers of a network on a CPU: the variants, and the choice of the fastest."""
