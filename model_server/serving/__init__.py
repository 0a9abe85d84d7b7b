"""The process of one shard. It executes iterations and decides nothing."""
