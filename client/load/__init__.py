"""Load: sends a workload to a server over HTTP and records what comes back."""
