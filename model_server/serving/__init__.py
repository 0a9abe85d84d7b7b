"""The process of one shard, which executes and decides nothing."""
