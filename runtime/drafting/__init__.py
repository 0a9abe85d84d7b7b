"""Guesses of a sequence's next tokens, made on the model's side, for the network to verify."""
