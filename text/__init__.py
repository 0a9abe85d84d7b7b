"""Tokenizers: text to tokens, and tokens to text as they arrive."""
