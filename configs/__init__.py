"""The YAML schema, its loader and the shipped configurations."""
