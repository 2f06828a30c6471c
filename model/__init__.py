"""The analytic model: pure functions on numpy arrays, no torch."""
