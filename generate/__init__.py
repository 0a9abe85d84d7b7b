"""How one iteration of each mode is laid out for the model. Plain lists, no torch."""
