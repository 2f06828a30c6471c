"""Timing the parts of a round: clocks, arms, blocks of samples."""
