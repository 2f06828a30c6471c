"""Runs that other programs measured, read from the files that they write."""
