"""The key/value cache with a length per row, and attention over it."""
