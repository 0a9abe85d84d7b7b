"""The modes: how an iteration of each is laid out, in counts, and how its KV memory is assigned."""
