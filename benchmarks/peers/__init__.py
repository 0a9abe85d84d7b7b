"""Other engines at the same work: each in its own virtual environment, one after the other."""
