"""How long policies take to plan, beside the step that they plan."""
