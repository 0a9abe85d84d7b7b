"""Workloads: arrivals, lengths, traces, and the files that keep them."""
