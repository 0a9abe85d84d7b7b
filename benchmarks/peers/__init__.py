"""Other engines at the same work: each in a virtual environment of its own, one after the other."""
