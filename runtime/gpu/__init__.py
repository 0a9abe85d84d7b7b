"""The local model on a GPU."""
