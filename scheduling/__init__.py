"""Policies, one a file: what the next iteration holds. No torch, no threads, no clock."""
