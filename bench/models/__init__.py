"""Models: loading a pair, its execution modes, static graphs."""
