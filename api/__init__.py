"""The doors: HTTP dialects, one blueprint each. They speak to the queue and know nothing of the
model behind it."""
