"""The command lines: their options, and which options go together."""
