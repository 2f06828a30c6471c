"""Measuring on a Ray cluster: what its tasks do, what travels, and who keeps it."""
