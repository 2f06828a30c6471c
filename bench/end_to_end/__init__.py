"""Decoding end to end under every arm, the baselines beside it, and what the texts show."""
