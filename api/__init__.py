"""The HTTP APIs, one blueprint each. Handlers put requests into the queue and know nothing of the
model behind it."""
