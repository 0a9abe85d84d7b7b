"""What clients send to OpenAI's API, as types that refuse the rest with a sentence."""
