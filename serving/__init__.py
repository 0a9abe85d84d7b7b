"""The serving process: its options, and the thread that runs the engine."""
