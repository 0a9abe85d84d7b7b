"""The process of one shard: it executes, and decides nothing."""
