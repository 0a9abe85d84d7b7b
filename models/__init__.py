"""The networks, what describes them, and where their weights come from."""
