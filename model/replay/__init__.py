"""Replay of policies over recorded texts: rounds simulated exactly, beside fixed γ and the bounds."""
