"""The live page: what a viewer costs, and the pictures of its documentation."""
