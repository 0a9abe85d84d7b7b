"""The job store alone."""
