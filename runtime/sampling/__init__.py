"""How the next tokens are drawn, and what their logprobs are."""
