"""Long prompts that arrive beside running decodes."""
