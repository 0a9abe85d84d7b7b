"""Many servers behind one router, placed and supervised by Ray."""
