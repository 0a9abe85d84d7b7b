"""OpenAI's Responses API: a response and its events, kept for later calls of its conversation."""
