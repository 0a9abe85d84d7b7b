"""What every benchmark has in common: options, turns, ratios, report, servers, pictures."""
