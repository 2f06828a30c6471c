"""Measures: the only folder that imports torch and transformers."""
