"""How one iteration of each mode is laid out, in counts: which rows are padded, by how much."""
