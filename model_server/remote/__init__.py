"""The engine's side: a model server, or all shards of one, as a `seams.Model`. Without torch."""
