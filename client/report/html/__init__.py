"""Pages and charts, independent of what they show."""
