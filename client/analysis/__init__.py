"""Figures from records: metrics, intervals, gates and verdicts."""
