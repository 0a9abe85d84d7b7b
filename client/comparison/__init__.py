"""A comparison: the systems that are compared, their servers, and the runs to make."""
