"""What the engine's records become: /stats, recordings and traces."""
