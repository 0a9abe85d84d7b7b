"""Every figure that the README, the pages and `results/` show, measured again."""
