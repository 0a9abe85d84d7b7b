"""Measurements of this project and its peers on the same work in one run."""
