"""Statistics: the joint bootstrap, medians and their intervals."""
