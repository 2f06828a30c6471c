"""The search for γ: which arm to time next, and when the best is known."""
