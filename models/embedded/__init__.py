"""The small model that ships with the project: weights, vocabulary, and their training."""
