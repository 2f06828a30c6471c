"""Acceptance: from the recorded pass, from given rates, over rounds that start where earlier ones ended."""
