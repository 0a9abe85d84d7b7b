"""The other engines: each module runs one, in the environment of that engine."""
