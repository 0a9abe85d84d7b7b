"""Other engines with the same work: each in its own virtual environment, one after the other."""
