"""Decoding: plain and speculative, drafters, verification, the sampling chain."""
