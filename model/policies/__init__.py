"""Policies that choose γ from round to round, what they forecast from, and how they are tuned."""
