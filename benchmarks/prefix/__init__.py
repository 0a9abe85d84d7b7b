"""Prefix caching: the savings of a shared beginning, and the cost of the look-up."""
