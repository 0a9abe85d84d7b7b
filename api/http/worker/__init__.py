"""gunicorn's worker, and the intake in which requests wait for a thread."""
