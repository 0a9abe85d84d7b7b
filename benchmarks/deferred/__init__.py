"""What deferred requests cost immediate ones, and how much capacity they use."""
