"""The API of Text Generation Inference."""
