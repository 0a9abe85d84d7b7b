"""The HTTP APIs, one blueprint each. Handlers put requests into the queue and are independent of
the model."""
