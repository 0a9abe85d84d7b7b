"""How much deferred requests delay immediate ones, and how much capacity they use."""
