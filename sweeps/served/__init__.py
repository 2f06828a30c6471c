"""Measuring servers: which server has which γ, prompts of a length, blocks of load, and what follows from them."""
