"""OpenAI's Files and Batches, over the durable store."""
