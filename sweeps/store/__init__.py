"""The run directory: its files, their rows, and who may write them."""
