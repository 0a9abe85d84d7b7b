"""The load generator: its speed, its pictures, an example run."""
