"""The parts of an iteration: linear layers, sampling, and a whole step."""
