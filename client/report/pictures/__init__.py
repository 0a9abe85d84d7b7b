"""The pictures of a run, of a comparison, and of the shape of a load."""
