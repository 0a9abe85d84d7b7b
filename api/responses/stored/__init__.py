"""Responses in the job store: kept for later calls, in the background, as lines of batches."""
