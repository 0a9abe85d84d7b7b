"""What speculation saves where a text is edited, and what it costs where drafts are of no use."""
