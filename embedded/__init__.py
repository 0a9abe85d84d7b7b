"""The small model that ships with the project: weights, vocabulary, and what trains them."""
